// Package forward passes requests of sandboxed code on to a package registry:
// what sandboxed code asks for on the one side, one destination of the broker's
// file on the other.
//
// It owns the verbs: for each protocol (go, npm, git) the requests that read and
// nothing else. A registry is never published to from a sandbox, and git fetches
// and does not push. It guarantees that a request cannot leave its destination's
// host, scheme and base path, that only listed headers go out and come back, that
// a credential is in one header and in nothing that comes back (INV-17), that a
// redirect to anywhere else is refused and not followed, and that what passes is
// counted before it is handed on.
//
// It refuses to judge whether somebody may ask at all, and it sees no capability.
// It does not look into packages: whoever may read a registry can also say
// something to it, in the names that it asks for. Test it with go test alone.
package forward

// Package mesh is a process' identity in Consul's mesh: its leaf and the roots that are
// believed, both watched at Consul's agent, and the proof of them on a connection. It
// implements link.Vouch, the second proof beside the certificates under the deployment's
// own root, which goes on saying who may do what.
//
// The proof is the leaf with its chain, and a signature of its key over the connection's
// exported key (RFC 8446, 7.5) and over the side that shows it: it is worth nothing on
// another connection, nor when it comes back to its sender.
//
// It guarantees that a peer is believed only under a root that Consul lists now, with
// exactly one SPIFFE ID, in this trust domain, the default namespace and partition, a
// datacenter that is admitted, and the name of the other service; that while a root is
// replaced leaves of both count, as long as Consul lists both; that a Consul that is away
// changes nothing until the leaf ends, and that nothing is shown or believed from then on,
// with a text that says so; and that a private key is in no error and in no log. It
// refuses a leaf of another service than it asked for. Test it with go test alone;
// real_test.go runs it on a real Consul.
package mesh

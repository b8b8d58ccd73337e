// Package issued holds the words for credentials that a server's engine issues for
// one action: how broker.hcl says which engine that is, and the forms in which what
// was issued is used.
//
// A credential with a `from` block is stored nowhere. The Authority port makes it for
// one action, under the grant of a person, and whoever sends the action gives it back
// when it is over. This package guarantees that what broker.hcl says can stand in a
// policy as it is: no pattern, no quote, no path of the server itself. It refuses
// combinations that say two things at once, all of them together. It asks no server.
// Test it with go test alone.
package issued

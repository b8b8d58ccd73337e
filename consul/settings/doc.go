// Package settings owns the consul block of broker.hcl and of server.hcl: where Consul is,
// as whom it is asked, and what the process is there. It reads the block and the usual
// environment of Consul's command line, and it asks nobody but, where something was refused, whose
// the token is.
//
// It guarantees that every problem is in one error, with what mends it; that a token is a
// file, read anew for every request, and is in no error; and that what would make the
// process ask somebody else, or as somebody else, is refused instead of ignored.
package settings

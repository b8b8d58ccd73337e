// Package intercept is what happens around every call of every listener: a
// request id, one log line, panics, deadlines and the translation of errors.
//
// It guarantees one log line a request, with method, code, duration and the ids
// that handlers annotate, and never a body or a header: at debug, and higher where
// somebody was refused, where a handler keeps it because it changes what somebody
// may do, and where the fault is ours. It guarantees that a coded error goes
// out with its code; and that an error without a code stays in the log, while
// the client gets an incident id. It refuses to know who calls: authentication
// belongs to the packages that own a listener. Test it with go test alone.
package intercept

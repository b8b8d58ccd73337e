// Package client is the Go client of the public API, which the command line
// uses: typed services, a bearer token, errors with codes, and retries.
//
// It guarantees that every error is a *protocol.Error; that a call is repeated
// only when its code says that the same request may succeed later and the call
// is idempotent; that a watched event stream resumes after the last event it
// handed out; and that a blob is accepted only with the digest that was asked.
// It refuses to keep state: login files belong to the command line. Test it
// with go test alone.
package client

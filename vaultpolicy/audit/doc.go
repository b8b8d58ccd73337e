// Package audit reads what a Vault or OpenBao server writes down of its requests, and
// says when something was done that may have ended a grant.
//
// It owns the following of an audit file over rotation, and a unix socket to which the
// server's socket device writes. It guarantees that a line which matters is passed on
// once it is whole, that whatever may have been missed (rotation, truncation, a line
// that is too long, a new connection) counts as a line which matters, and that it
// never waits for anybody while a server writes to it. It is a wake-up and no source
// of truth: accessors in the lines are hashed and passed on as they are written, expiry
// leaves no line, and who is woken asks the server. It keeps nothing of what it reads.
// Test it with go test alone.
package audit

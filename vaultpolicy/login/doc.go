// Package login keeps the broker logged in at Vault or OpenBao.
//
// It owns the broker's own token. It guarantees that the token is renewed at half
// of its life and made anew, with every file read again, near its end or when the
// server refuses it; that a request which failed with a dead token is asked once
// more with a live one; and that only one login is under way at a time. It refuses
// another server than the one at which it began (by its cluster id, in memory alone),
// a root token, and files that other users of the machine can read. It decides
// nothing about grants: a login that is lost revokes none. Test it with go test
// alone.
package login

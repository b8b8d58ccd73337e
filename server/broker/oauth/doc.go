// Package oauth makes access tokens of what a tenant stored: of a refresh token (RFC
// 6749, 6), or of a client's own secret (4.4).
//
// What is stored stays with the authority, keyring or Vault, and is read anew under a
// grant before each use; this package decides nothing about who may use it. An access
// token is in memory alone, is got before the one in force ends, and once for
// everybody who waits. A refresh token that the server replaces is written back before
// this package forgets the old one, and while that fails it is kept, written again, and
// told to a doctor (INV-18): only the end of the process can lose it.
//
// A request that was begun is ended by nobody who waits for it, and not by the broker's
// stop: its answer may hold the only refresh token that counts. What the server says is
// read for a code of RFC 6749 and for nothing else: no word of it, no token and no secret
// is in an error, a log or a finding (INV-17). Test it with go test alone.
package oauth

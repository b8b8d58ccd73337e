// Package api is the public API: Connect handlers over HTTP/2 and HTTP/1.1, in
// JSON or binary, that translate between the wire and the engine, the store and
// the broker's ciphertext calls. The contract is in bivouac/v1.
//
// It guarantees that every call has an authenticated caller, which decides what
// exists for it (INV-9): another's session, turn, approval or artifact is
// answered like an absent one. It holds no decision: those are the engine's. It
// refuses to read a credential, and never logs a body. Test it with go test
// alone; the two-tenant test enumerates every method of every service.
package api

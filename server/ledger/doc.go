// Package ledger seals what happened. The events of a session are a hash chain;
// a *segment* is a run of them, named by the hash at its end, which covers all
// before it. Segments are the leaves of one Merkle tree a tenant (the transparent
// log of golang.org/x/mod/sumdb/tlog, RFC 6962), and the tree's head is signed as
// a receipt, with the chain to the root in the signature.
//
// So an export needs no server to be believed: its events give the hashes of
// their segments, proofs lead from the segments to the head, and the head to the
// fingerprint that a login pins. An altered, missing or added byte is found, and
// said with the line, the session and the event.
//
// A head follows the last one that the broker saw, or is a Refusal that says which
// Break it is and what mends it: a server, or whoever has its disk, can have no
// second history signed.
//
// It guarantees that what it verifies is exactly what was sealed. It does not say
// that what was sealed is true, nor that nothing happened besides; and whoever
// holds the broker's receipt key can sign another history. It refuses payloads:
// only their salted digests are in events, so that erasure leaves the ledger whole.
//
// The package is pure: the store keeps the hashes, the engine seals, and files
// are readers and writers. Test it with go test alone; BenchmarkVerify measures.
package ledger

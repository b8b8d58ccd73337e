// Package calllog remembers which actions left the broker: one append-only file
// of checked lines, fsynced before anything is sent.
//
// It guarantees that an action of which a byte may have left is SENT in the log,
// whatever was killed in between (INV-4), that an action in the log is not sent
// again unless the request is idempotent under the very same key (INV-5), and
// that a torn end of the file costs only the entry that was never acknowledged.
// It is bounded: Since says from when on its silence means "not sent".
//
// It stores digests, never arguments or answers. Test it with go test alone.
package calllog

// Package journal is a small durable log of records: one directory, written by
// one process, read back after a crash. It holds what a runner must not forget:
// claims, intents, results and what the server has not accepted yet.
//
// It guarantees:
//   - sequence numbers are gapless from 1;
//   - a record appended as durable is on the disk when Append returns;
//   - after a crash, Open finds a prefix of what was appended which contains
//     every durable record. A tail that was torn is cut off; a damaged record
//     that had been durable is data_loss, never silently dropped (the newest one
//     alone cannot be told from a torn write);
//   - Replay returns exactly the bytes that were appended;
//   - it refuses to grow over its bound instead of filling the disk, and keeps a
//     reserve so that a durable record (a result) still fits.
//
// It refuses several writers, random access and rewriting. A failed fsync ends
// the journal: what the kernel dropped then cannot be known.
//
// The decision for a log of our own is torn_test.go: it cuts the file at every
// byte, flips every byte and loses unsynced pages in any order.
package journal

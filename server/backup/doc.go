// Package backup writes and reads the copy of a deployment's state: one file with
// every row of the store, as of one instant, and the artifacts that the rows name.
//
// The file is a tar archive (PAX). Its entries, in order:
//
//	manifest.json                 what it is of: format, engine, schema, epoch, instant
//	tables/<name>/<n>.jsonl       rows; the first line is the list of columns
//	blobs/<64 hex digits>         an artifact under the SHA-256 of its content
//	end.json                      size and SHA-256 of every entry before it
//
// A row is a JSON array: text as a string, an integer as a number, bytes as
// {"b": "<base64>"}. A copy of one engine fills the other.
//
// It guarantees that a copy is of one state, also while a server runs; that a file
// without its end, or with an altered byte, is refused before anything is written,
// with the entry that is wrong; and that the file is there whole or not at all.
//
// It holds no key of the broker: the keyring is named, because without it nobody
// can use the copy, and is to be kept elsewhere. It does hold what people wrote.
// Test it with go test alone; .ci/postgres adds the second engine.
package backup

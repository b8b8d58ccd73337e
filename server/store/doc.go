// Package store is the one SQL store: sessions, turns, actions, approvals,
// attempts, runners, principals, agents and everything else that must survive.
// One SQL text serves SQLite (the default) and PostgreSQL.
//
// It guarantees that state, event and outbox commit together; that every method
// has a caller and answers nothing outside that caller's binding, in the words of
// what does not exist (INV-9); that legal transitions are refused by the database
// when code forgot (INV-2); that event sequences are gapless and hash-chained over
// the stored bytes (INV-8); and that what was answered as committed is on disk.
//
// On SQLite one writer takes all Updates that wait into one transaction, a
// savepoint each, and commits them together; Views read snapshots beside it. On
// PostgreSQL every Update is serializable and runs again when it lost a race. The
// same code therefore sees the same on both. Open starts the writer and Close
// ends it: no other loop runs here.
//
// It refuses interfaces, ORMs, values from the context, the database's own clock,
// a schema of another build, and a data directory that another process holds.
//
// Test it with storetest on both engines: .ci/postgres go test ./server/store/...
package store

// Package store is the one SQL store: sessions, turns, actions, approvals,
// attempts, runners, principals, agents and everything else that must survive.
// One SQL text serves SQLite (the default) and PostgreSQL.
//
// It guarantees that state, event and outbox commit together; that every method
// has a caller and answers nothing outside that caller's binding (INV-9); that
// legal transitions are refused by the database when code forgot (INV-2); and
// that event sequences are gapless and hash-chained over the stored bytes
// (INV-8). It refuses interfaces, ORMs, values from the context, and the
// database's own clock. Test it with storetest on both engines.
package store

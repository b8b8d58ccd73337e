// Package session holds the pure life of a conversation: sessions, turns,
// actions and approvals, their states, the tables of legal steps and what each
// step records. It has no clock, randomness, I/O or locks: instants come in as
// arguments.
//
// It guarantees that terminal states have no exits (INV-2) and that an
// approval is consumed at most once by exactly the digest it names (INV-6).
// It refuses to know about runners, leases and attempts beyond their ids; those
// are package execution's, and only the engine joins the two.
package session

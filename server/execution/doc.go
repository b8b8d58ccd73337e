// Package execution holds the pure life of work on machines: attempts, leases,
// runners and bindings, their states and the tables of legal steps. An attempt
// is origin-neutral: it knows the id and kind of what it works for, not what
// that is. It has no clock, randomness, I/O or locks.
//
// It guarantees that only the current fence advances an attempt (INV-3) and
// that the first claim wins (INV-14). It refuses to know about sessions.
package execution

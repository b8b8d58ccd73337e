// Package engine joins sessions and execution: admission, activation, the loop
// of service-placed turns, dispatch, acceptance, approvals, reconciliation,
// reaping, revocation. It owns every decision that needs both worlds, and does
// all its work in ticks: tick(ctx) (worked bool, err error). Long I/O is an op,
// started by one tick, whose completion is the input of a later one.
//
// It guarantees intent before effect (INV-4), no second effect of unknown
// outcome (INV-5), and that every write of a loop is guarded by its fence
// (INV-3). It refuses SQL, HTTP and wire formats.
package engine

// Package engine joins sessions and execution: admission, activation, the loop
// of service-placed turns, dispatch, acceptance, approvals, reconciliation,
// reaping, revocation. It owns every decision that needs both worlds, and does
// all its work in ticks: tick(ctx) (worked bool, err error). Long I/O is an op,
// started by one tick, whose completion is the input of a later one.
//
// It guarantees intent before effect (INV-4), no second effect of unknown
// outcome (INV-5), and that every write of a loop is guarded by its fence
// (INV-3). It refuses SQL, HTTP and wire formats.
//
// To read it: turn.go is one turn inside one transaction, turn_end.go its end;
// drive.go gives the loop what happened and carries out what it says; action.go
// makes and settles actions, dispatch.go, gateway.go and device.go send them,
// reconcile.go finds out what became of them. tick.go lists the loops. Use cases
// of people are in sessions.go, admit.go, cancel.go, approvals.go, unknown.go,
// agents.go, grants.go, revoke.go and explain.go (foundation.go and union.go: what a
// grant carries, and which); those of machines in
// runners.go, mailbox.go, claim.go, report.go, report_turn.go and blobs.go.
//
// Test it with enginetest, in testing/synctest: its World steps ticks and ops one
// at a time, so that a test can drop the engine after any of them.
package engine

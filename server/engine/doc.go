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
// # To read it, as a prompt walks
//
// What everything is made of: engine.go (what it needs, what it holds), ports.go (whom it
// asks), limits.go, tick.go (the loops, and what wakes them), ops.go (long I/O),
// set.go, pauses.go and ids.go. turn.go is one turn or attempt inside one transaction,
// turn_end.go its end.
//
// A person asks: sessions.go opens a conversation, with what agents.go and definitions.go
// know of its agent and effective.go and registry.go of its reach; admit.go takes the turn,
// within quota.go; quota_runner.go is what a machine takes.
//
// It begins: activate.go freezes what it may do, by what the broker says of itself
// (describe.go), takes the owner row (owners.go) and a slice of the budget (budget.go), and
// gives the loop its first input. drive.go gives the loop what happened and carries out
// what it says.
//
// The model: due.go knows which call waits, model.go starts it, authority.go mints what it
// may do (under one of the grants of union.go), live.go shows its text, settle.go
// makes the answer the next input.
//
// A tool: action.go makes and settles actions, dispatch.go sends what is committed:
// gateway.go to the broker (calls.go are those under way, answer.go says what an answer
// is worth), device.go to a machine.
// approvals.go asks a person first, owner_key.go the owner of the machine, owner_turn.go
// for a whole turn; owner_ask.go lists what waits there, owner_decline.go is that owner's
// no. reconcile.go finds out what became of those in doubt, inspect.go looks
// at the thing itself, unknown.go is a person's word on the rest.
//
// A machine: joincodes.go invites it, workload.go takes one that Nomad signs for, runners.go
// enrols and connects it (links.go; copies.go is about two with one key), bindings.go lets others use it, mailbox.go is how it is told.
// runner_turn.go makes the attempt of a turn that is placed there, place.go offers it (allocate.go has
// another scheduler start its supervisor, allocated.go is what is known of that, and
// allocate_ended.go asks how one ended that never began), claim.go
// gives it away and renews its lease (leases.go), report.go and report_turn.go accept what
// it did, blobs.go its files, park.go hands a turn over while a person decides. reap.go
// ends what does not answer.
//
// It ends: deadlines.go when it takes too long, cancel.go when its person says so. usage.go
// and slice.go settle what it used, cleanup.go removes what it needed, traces.go and meter.go
// tell who watches, explain.go tells a person why it waits, explain_allocation.go what another scheduler says
// of that, explain_hosts.go why it runs no runner, explain_ended.go what to try after it,
// explain_refused.go what the broker refused.
//
// Authority: principals.go and grants.go give it, grant_reach.go says what one lets its agent do, foundation.go is what stands on it, revoke.go
// takes it back, rotate.go renews the secret part of a grant, restored.go does so once more after the broker's
// grants were restored, floors.go is what this replica knows of that, probe.go proves it.
//
// Beside all turns: replicas.go is who else works on the store, lifetime.go ends old
// sessions, erase.go takes words out, seal.go and export.go are the ledger, sweep.go removes
// unread artifacts, rewind.go settles a store that was restored. The planted files are bugs that
// build tags bring in: planted_claim.go, planted_claim_off.go, planted_intent.go and
// planted_intent_off.go.
//
// Test it with enginetest, in testing/synctest: its World steps ticks and ops one
// at a time, so that a test can drop the engine after any of them.
package engine

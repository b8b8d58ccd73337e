// Package supervise is the process of one turn attempt. It owns the attempt's
// journal, workspace, sandboxes and relay, and works on without the daemon,
// which reaches it over a Unix socket in the attempt's directory.
//
// It guarantees:
//   - the worker runs in sandbox A with one socketpair and nothing else; each
//     tool call runs in a sandbox B of its own; neither sees the capability, and
//     no file of the workspace is opened here by a path that code may have made
//     a link of (INV-12);
//   - nothing of the worker is heard before its workspace stands;
//   - an event is in the journal before the worker is told so, and a request for
//     a server's tool, a checkpoint and the result are on the disk (INV-4);
//   - commands of a turn that names package registries find a door to each, which
//     leads through the relay to the broker and nowhere else; the others find no
//     network at all (INV-12);
//   - authority is counted by a clock that includes suspend, is read before every
//     call, and when it is over the relay closes and every process is frozen until
//     the lease is renewed under the same fence, or its retention is over; then, or
//     where nothing can freeze, every process is killed (INV-20); a result is never
//     made up for an attempt that lost it;
//   - what sandboxed code may write has a size, by a file system of its own where one
//     can be mounted, and package caches are read by it and never written (INV-12);
//   - Stop answers when no process is left, setsid and double fork included;
//   - an attempt whose allocation is ended from outside is interrupted, and goes on
//     from its last checkpoint elsewhere: it has not failed;
//   - what it made is removed when the result is acknowledged (INV-18).
//
// It refuses a second claim, other work under the same attempt, and to go on
// after its own restart: then it reports the attempt as interrupted.
//
// Test it with a small broker in process; twin_test.go runs it in virtual time.
package supervise

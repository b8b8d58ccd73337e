// Package edge is the runner daemon on a person's machine. It owns the link to
// the server, the leases of this machine, the device actions, and one supervisor
// process for each turn that runs here; supervisors outlive it.
//
// It guarantees:
//   - an attempt is claimed once from here, under a boot nonce that was stored
//     before the claim (INV-14), and the claim is journalled before work begins;
//   - a device effect has its intent on the disk before it, and the lease is
//     asked right before it (INV-4, INV-20);
//   - over what edge.hcl holds a second key nothing is done before its owner said yes
//     on this machine, to exactly what was shown; the server hears of it before the
//     effect and can never give it (INV-6);
//   - after a crash, an effect is inspected and never repeated (INV-5);
//   - what was done is reported until the server accepted it, over restarts of
//     either side; reconnecting resumes from durable cursors;
//   - when authority is lost, or the owner pauses, or the server fences the
//     runner, sandboxes end and actions are refused; the owner's switch works
//     without a network.
//
// It refuses to decide what may run: the server offers, edge.hcl narrows.
//
// Each loop is a file loop_*.go with a tick that does one step; Run schedules
// them. Long work (a device action, a turn) is an op. Sockets, supervisors, the
// clock and the sandbox come in through Config, so that a test drives a daemon
// in virtual time.
package edge

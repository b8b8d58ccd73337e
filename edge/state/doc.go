// Package state is the one directory of a runner on disk, 0700:
//
//	device.key     the device key, PKCS #8 PEM, 0600; made at join, never sent
//	runner.crt     its certificate chain, PEM, leaf first; renewed
//	root.crt       the pinned root
//	enrolment.json what join learned: server, broker, ids
//	edge.hcl       the owner's policy
//	sandbox.json   what the sandbox was seen to enforce since the machine started
//	epoch          the connection epoch last held
//	paused         there while the owner has paused the runner
//	lock           held by the one daemon
//	control.sock   the daemon's local control socket
//	journal/       device attempts, package journal
//	attempts/<attempt id>/
//	               one turn attempt: boot_nonce, claim, blobs/<hex digest>,
//	               supervise.sock and whatever its supervisor keeps; where
//	               another scheduler starts that, allocation and offer, and
//	               taken: the mark of the one process that took it (INV-14)
//
// It guarantees that files are replaced whole and survive a crash, that a
// directory is used by one daemon at a time, and that an attempt's directory is taken
// by one supervisor ever. All state is here: a machine whose
// directory is gone has to enrol again.
package state

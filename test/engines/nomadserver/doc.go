//go:build linux

// Package nomadserver runs a real Nomad for tests: one server, and clients that are
// processes of their own. It owns them from their first start to their end: their
// folders, their certificates and the management token, and what they started.
//
// It guarantees that they listen on the loopback alone, speak TLS under an authority made
// for them, demand it of each other with the name of the role (verify_server_hostname),
// and have access control; that the management token is in this process's memory alone;
// that nothing of the developer's environment reaches them; and that after the test no
// job, no task, no mount and no process of theirs is left. It never builds Nomad, whose
// licence is no open-source one: where none is on PATH its tests are skipped, loudly.
//
// Tests begin with Each, and take a cluster from Start.
package nomadserver

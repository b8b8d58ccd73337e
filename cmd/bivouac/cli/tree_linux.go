package cli

import "syscall"

// childAttr puts a child into a group of its own, so that Ctrl-C reaches it
// through end and in order, and ends it when the thread that made it is gone,
// so that none outlives a killed parent.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

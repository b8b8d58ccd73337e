// Package bubblewrap runs sandboxed processes with bwrap(1): boundary class
// "process" on Linux, as root or as a user without subordinate ids.
//
// It owns the arguments of bwrap, the processes it starts and the control group
// of an attempt. It guarantees that
//   - no file access inside has host uid 0: started as root it drops to a
//     dedicated uid first, because bwrap would map to root and a read-only bind
//     would then read root's files;
//   - every process of a run lives in one PID namespace whose first process is
//     held by a pidfd, so killing that one ends setsid, double forks and daemons,
//     and Run returns only when the kernel has reaped all of them;
//   - a process is limited before it executes anything: bwrap waits at a gate
//     while limits are set;
//   - a frozen group does nothing, starts nothing and loses no time of its limits;
//   - nothing of ours is inherited but what Process names, and bwrap itself gets
//     an empty environment, because it runs outside;
//   - sandbox A (RoleWorker) has no /proc, no /dev and no writable place, so the
//     worker's binary is the only thing there that could be executed.
//
// It refuses bwrap older than 0.8.0 (file-descriptor binds, --disable-userns),
// setuid bwrap's privileges, and anything it could not enforce. Prove it with
// sandboxtest, as root and as a user.
package bubblewrap

import (
	"log/slog"

	"bivouac/edge/sandbox"
)

// Host identity of sandboxed processes when the edge is root. It must belong to
// nobody else: it is outside the ranges of useradd, systemd and nobody.
const (
	DefaultUID = 58170
	DefaultGID = 58170
)

// Config of a Backend. Its zero value works.
type Config struct {
	// Path of bwrap; empty looks it up in PATH.
	Path string
	// UID and GID replace DefaultUID and DefaultGID. Used only by root.
	UID, GID int
	// CgroupParent is the folder for groups below a cgroup hierarchy's root;
	// "bivouac" when empty. A delegated cgroup v2 group comes first.
	CgroupParent string
	// SeenFunc is what a probe of another process saw that runs on this machine for the
	// same owner; the zero report: none. It stands for one of our own where this process
	// has the same rights. Nil: this process looks itself.
	SeenFunc func() sandbox.Report
	// Log gets what is not worth an error; nil is silent.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.UID == 0 {
		c.UID = DefaultUID
	}
	if c.GID == 0 {
		c.GID = DefaultGID
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

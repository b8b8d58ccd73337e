// Package sandbox confines what an attempt runs. It owns the Backend port and
// the limits; boundary classes are words of edge/protocol. bubblewrap/ is the first backend and
// sandboxtest the suite that every backend passes.
//
// An attempt has two kinds of sandbox. A, the worker's, has one inherited
// socket, no workspace and no right to execute anything. B, the code's, is made
// anew for every tool call, has the workspace and no channel but the sockets that
// its supervisor binds: doors to package registries, by way of the broker. Neither
// holds a credential or a route that avoids the broker (INV-12).
//
// A backend fails closed: what it cannot enforce it refuses, and Probe says so
// from observation, never from configuration.
package sandbox

import (
	"context"
	"io"
	"os"
	"time"
)

// Role decides the policy of a process.
type Role int

const (
	// RoleWorker: one inherited socket as descriptor 3, no workspace, no exec,
	// no socket().
	RoleWorker Role = iota + 1
	// RoleCode: the workspace, no channel of its own; sockets of no family but those the
	// empty network namespace makes harmless.
	RoleCode
)

// Limits of one attempt (memory, processes, CPU) and one process (time, output).
// Zero is refused.
type Limits struct {
	MemoryBytes int64
	CPUMillis   int64
	PIDs        int32
	DiskBytes   int64
	Timeout     time.Duration
	OutputBytes int64
}

// Bind shows a host path inside, read-only unless Writable.
type Bind struct {
	Host     string
	Inside   string
	Writable bool
}

// Process is one process to confine.
type Process struct {
	Role Role
	Argv []string // as seen inside
	Env  []string // the whole environment; nothing is inherited
	Dir  string   // inside
	// Workspace is the host directory bound writable at /workspace; RoleCode only.
	Workspace string
	// Protected are paths below the workspace that are read-only inside.
	Protected []string
	Binds     []Bind
	// Socket becomes descriptor 3; RoleWorker only.
	Socket *os.File
	Stdin  io.Reader
	// Stdout and Stderr get at most Limits.OutputBytes together; then the
	// process is killed and Exit.OutputLimit is set.
	Stdout io.Writer
	Stderr io.Writer
	// Timeout is less than Limits.Timeout where it is set. Both count the time that
	// the process could run: a frozen group's stands still.
	Timeout time.Duration
}

// Exit says how a process ended. Exactly one of the flags explains a kill.
type Exit struct {
	Code        int
	Signal      string
	Timeout     bool
	OutOfMemory bool
	TooManyPIDs bool
	OutputLimit bool
	DiskLimit   bool // the workspace grew beyond Limits.DiskBytes
	Killed      bool // by Group.Kill, or because ctx was cancelled
}

// Report is what a machine was seen to enforce.
type Report struct {
	Boundary string // protocol.Boundaries; empty: no usable sandbox
	Limits   string // protocol.LimitsCgroup or LimitsRlimit
	Disk     string // how DiskBytes is enforced
	Problem  string // for people, with what to do
	Rootless bool
	// Freezer names what was seen to freeze and thaw a group; empty: nothing can, and
	// sandboxes are killed where they would be frozen.
	Freezer string
}

// Ways to keep DiskBytes.
//
// DiskSized: file systems of a fixed size can be mounted; who stages a workspace
// puts it into one.
const DiskSized = "sized"

// DiskWatched: the size of a workspace is measured while a process runs, and
// the process is killed when it grew too far. A burst between two measurements
// gets through.
const DiskWatched = "watched"

// Backend makes groups; one group holds all processes of one attempt.
type Backend interface {
	// Probe tries everything it will promise and reports what held.
	Probe(ctx context.Context) Report
	// Group makes the group of an attempt: limits are over all its processes.
	// id is safe as a file name.
	Group(ctx context.Context, id string, l Limits) (Group, error)
	// Clear ends and removes the group of an id whose maker died, if there is one:
	// a process that was being made then may not have followed it.
	Clear(ctx context.Context, id string) error
	// Sweep ends and removes groups of ids that are not in keep.
	Sweep(ctx context.Context, keep []string) (removed []string, err error)
	// Tidy removes what is kept for groups as long as there is one, if there is none.
	Tidy(ctx context.Context) error
}

// Group is all processes of one attempt.
type Group interface {
	// Run starts a process and waits until it and everything it started are gone.
	// A deadline of ctx becomes Exit.Timeout; another cancellation becomes
	// Exit.Killed, and its cause is returned. A Stdin that blocks is not waited for.
	Run(ctx context.Context, p Process) (Exit, error)
	// Freeze stops every process of the group and returns when none moves. A Run
	// that comes meanwhile starts at the thaw. What ends one process alone, such as
	// the end of ctx, may have its effect at Thaw or Kill. Where Report names no
	// Freezer it is CodeIncompatible.
	Freeze(ctx context.Context) error
	// Thaw lets them go on.
	Thaw(ctx context.Context) error
	// Kill ends every process of the group, frozen or not, setsid and double fork
	// included, and returns when none is left. The group stays usable for nothing but
	// Close.
	Kill(ctx context.Context) error
	// Close kills and removes everything the group made.
	Close(ctx context.Context) error
}

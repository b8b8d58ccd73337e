// Package sandboxtest is the suite that every sandbox backend passes. It owns
// the promises of the Backend port as tests, and an attacker program that tries
// each way out of a sandbox and to the worker's channel.
//
// It guarantees that no detector is blind: for each way there is a broken twin
// (a backend with one hole, a process with a wrong bind, or the bare host) in
// which the same attacker must succeed (INV-12). It refuses to judge by
// configuration; only what the attacker got counts. Run it as root and as a
// user without subordinate ids.
package sandboxtest

import (
	"testing"
	"time"

	"bivouac/edge/sandbox"
)

// Hole is one deliberate weakness of a broken backend.
type Hole string

// Holes that a backend's tests can open.
const (
	HoleNetwork       Hole = "network"        // the host's network namespace
	HoleProcesses     Hole = "processes"      // the host's process ids
	HoleSystemCalls   Hole = "system-calls"   // no filter
	HoleUserNamespace Hole = "user-namespace" // nested ones allowed
	HoleCapabilities  Hole = "capabilities"   // all, in the own user namespace
	HoleDevices       Hole = "devices"        // the host's /dev
	HoleProtected     Hole = "protected"      // protected paths are writable
	HoleParents       Hole = "parents"        // folders above them can be renamed
	HoleDescriptor    Hole = "descriptor"     // one more is inherited
	HoleEnvironment   Hole = "environment"    // the edge's own is inherited
	HoleRoot          Hole = "root"           // host uid 0 inside
)

// Config of a run of the suite.
type Config struct {
	// New makes the backend under test.
	New func(t *testing.T) sandbox.Backend
	// Broken makes the same backend with holes; nil for one that confines
	// nothing, whose attacks are then left out.
	Broken func(t *testing.T, holes ...Hole) sandbox.Backend
	// Program is the attacker as seen inside; Attacker its host path, which is
	// bound there if set.
	Program  string
	Attacker string
	// UID is the host uid of sandboxed processes.
	UID int
	// Setuid is a copy of the attacker that belongs to root and has the
	// set-user-id bit; empty leaves that way out.
	Setuid string
}

// Limits that no test hits unless it means to.
var roomy = sandbox.Limits{
	MemoryBytes: 1 << 30, CPUMillis: 2000, PIDs: 128, DiskBytes: 256 << 20,
	Timeout: time.Minute, OutputBytes: 1 << 20,
}

// Run runs the suite.
func Run(t *testing.T, c Config) {
	t.Run("Lifecycle", c.lifecycle)
	t.Run("Kill", c.kill)
	t.Run("Freeze", c.freeze)
	if c.Broken == nil {
		return
	}
	t.Run("Limits", c.limits)
	t.Run("Workspace", c.workspace)
	t.Run("Tidy", c.tidy)
	t.Run("Attacks", c.attacks)
}

// RunGroups runs the part of the suite that depends on how processes are grouped.
func RunGroups(t *testing.T, c Config) {
	t.Run("Kill", c.kill)
	t.Run("Freeze", c.freeze)
	t.Run("Limits", c.limits)
	t.Run("Tidy", c.tidy)
}

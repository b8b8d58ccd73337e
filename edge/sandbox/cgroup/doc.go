// Package cgroup owns the control groups of attempts: one group an attempt, in
// whatever the machine has. That is cgroup v2 with its controllers, cgroup v1
// hierarchies, or v1 with a unified hierarchy beside it that has no controller
// but can still kill.
//
// It guarantees that memory (swap included), processes and CPU are limited over
// all processes of a group or that Create fails, that Freeze and Thaw, where the
// kernel can, stop and continue all of them, that Kill leaves none behind (session
// leaders, double forks, daemons and frozen ones included), and that counters say
// which limit was hit. It refuses partial limits. Kernel objects are real in
// its tests; without the right to make groups they skip and say so.
package cgroup

import "bivouac/edge/protocol"

// Limits over all processes of a group.
type Limits struct {
	MemoryBytes int64
	CPUMillis   int64
	PIDs        int64
}

// Counters tell which limit was hit, since the group was made.
type Counters struct {
	OutOfMemory int64 // processes killed
	PIDsRefused int64 // forks refused
	Throttled   int64 // CPU periods cut short
}

// errNone says why a machine has no usable groups.
func errNone(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeFailedPrecondition, format, args...)
}

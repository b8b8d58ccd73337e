package supervise

import (
	"time"

	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/sandbox"
)

// limits of an attempt and of one tool call in it.
type limits struct {
	attempt sandbox.Limits
	exec    time.Duration
}

// Defaults of what the work leaves open.
const (
	defaultMemory = 2 << 30
	defaultCPU    = 2000
	defaultPIDs   = 512
	defaultDisk   = 4 << 30
	defaultExec   = 10 * time.Minute
	defaultOutput = 4 << 20
)

// limits are what the work asks for, narrowed to what the owner allows. A
// process may live as long as the attempt; a tool call has less.
func (c Config) limits(asked *runnerv1.SandboxLimits, budget time.Duration) limits {
	if c.NarrowFunc != nil {
		asked = c.NarrowFunc(asked)
	}
	return limits{
		attempt: sandbox.Limits{
			MemoryBytes: or(asked.GetMemoryBytes(), defaultMemory),
			CPUMillis:   or(asked.GetCpuMillis(), defaultCPU),
			PIDs:        or(asked.GetPids(), defaultPIDs),
			DiskBytes:   or(asked.GetDiskBytes(), defaultDisk),
			OutputBytes: or(asked.GetOutputBytes(), defaultOutput),
			Timeout:     max(budget, time.Second),
		},
		exec: or(millis(asked.GetExecTimeoutMs()), defaultExec),
	}
}

func or[T int32 | int64 | time.Duration](asked, fallback T) T {
	if asked > 0 {
		return asked
	}
	return fallback
}

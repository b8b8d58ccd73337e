package supervise

import (
	"fmt"
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

// narrowed says what the owner gives less of than the work asked for: a command that
// dies of it is not the work's fault, and whoever waits should know.
func (c Config) narrowed(asked *runnerv1.SandboxLimits) (out []string) {
	if c.NarrowFunc == nil {
		return nil
	}
	given := c.NarrowFunc(asked)
	for _, l := range []struct {
		name, unit   string
		asked, given int64
		per          int64
	}{
		{"memory", " MiB", asked.GetMemoryBytes(), given.GetMemoryBytes(), 1 << 20},
		{"CPU", " millis", asked.GetCpuMillis(), given.GetCpuMillis(), 1},
		{"processes", "", int64(asked.GetPids()), int64(given.GetPids()), 1},
		{"disk", " MiB", asked.GetDiskBytes(), given.GetDiskBytes(), 1 << 20},
	} {
		if l.given > 0 && l.given < l.asked {
			out = append(out, fmt.Sprintf("%s %d of %d%s", l.name, l.given/l.per, l.asked/l.per, l.unit))
		}
	}
	return out
}

func or[T int32 | int64 | time.Duration](asked, fallback T) T {
	if asked > 0 {
		return asked
	}
	return fallback
}

package supervise

import (
	"slices"
	"testing"

	"bivouac/edge/protocol/runnerv1"
)

// INV-10: what the owner narrows is said, and nothing else is.
func TestNarrowedLimitsAreSaid(t *testing.T) {
	asked := &runnerv1.SandboxLimits{MemoryBytes: 4 << 30, CpuMillis: 4000, Pids: 512, DiskBytes: 8 << 30}
	given := func(l *runnerv1.SandboxLimits) Config {
		return Config{NarrowFunc: func(*runnerv1.SandboxLimits) *runnerv1.SandboxLimits { return l }}
	}
	for name, c := range map[string]struct {
		cfg  Config
		want []string
	}{
		"no owner":  {Config{}, nil},
		"as asked":  {given(asked), nil},
		"all lower": {given(&runnerv1.SandboxLimits{MemoryBytes: 512 << 20, CpuMillis: 1000, Pids: 64, DiskBytes: 1 << 30}), []string{"memory 512 of 4096 MiB", "CPU 1000 of 4000 millis", "processes 64 of 512", "disk 1024 of 8192 MiB"}},
		"one":       {given(&runnerv1.SandboxLimits{MemoryBytes: 4 << 30, CpuMillis: 1, Pids: 512, DiskBytes: 8 << 30}), []string{"CPU 1 of 4000 millis"}},
	} {
		if got := c.cfg.narrowed(asked); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := given(asked).narrowed(&runnerv1.SandboxLimits{}); len(got) != 0 {
		t.Errorf("of nothing that was asked for: %q", got)
	}
}

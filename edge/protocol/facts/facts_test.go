package facts_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/facts"
	"bivouac/edge/protocol/runnerv1"
)

func honest() *runnerv1.Facts {
	return &runnerv1.Facts{
		Os: "linux", Arch: "amd64", Version: "1.4.0+dirty", BootId: "0b4c", Slots: 3, Boundary: "process", Limits: "cgroup",
		Actions: []string{"files.read", "files.write"}, Toolchains: []string{"go"}, Caches: []string{"mod"}, Adapters: []string{"native"},
		SecondKeys: []string{"turn"}, SandboxProblem: "no user namespaces:\n\tunshare: operation not permitted", Host: "Lucía's böx",
		Harnesses: []*runnerv1.Harness{{Name: "native", Version: "1.4.0", Protocol: 1}}, Quota: &runnerv1.RunnerQuota{MaxActiveActions: 2, MaxTokensPerDay: 1 << 40},
	}
}

// Every word of a machine has its bound and its characters; at the bound it is taken.
func TestFactsAreBounded(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	many := func(n int) (out []string) {
		for range n {
			out = append(out, "x")
		}
		return out
	}
	harnesses := func(n int) (out []*runnerv1.Harness) {
		for range n {
			out = append(out, &runnerv1.Harness{Name: "native"})
		}
		return out
	}
	if err := facts.Check(honest()); err != nil {
		t.Fatalf("an honest machine: %v", err)
	}
	if err := facts.Check(nil); err != nil {
		t.Fatalf("a machine that says nothing: %v", err)
	}
	for name, c := range map[string]struct{ good, bad func(f *runnerv1.Facts) }{
		"os":         {func(f *runnerv1.Facts) { f.Os = long(64) }, func(f *runnerv1.Facts) { f.Os = long(65) }},
		"version":    {func(f *runnerv1.Facts) { f.Version = "v1 (dev)" }, func(f *runnerv1.Facts) { f.Version = "v1\x1b[2J" }},
		"boot_id":    {func(f *runnerv1.Facts) { f.BootId = "" }, func(f *runnerv1.Facts) { f.BootId = "a\nb" }},
		"host":       {func(f *runnerv1.Facts) { f.Host = long(253) }, func(f *runnerv1.Facts) { f.Host = long(254) }},
		"sandbox":    {func(f *runnerv1.Facts) { f.SandboxProblem = long(4096) }, func(f *runnerv1.Facts) { f.SandboxProblem = long(4097) }},
		"hidden":     {func(f *runnerv1.Facts) { f.SandboxProblem = "a\nb" }, func(f *runnerv1.Facts) { f.SandboxProblem = "a\u202eb" }},
		"actions":    {func(f *runnerv1.Facts) { f.Actions = many(64) }, func(f *runnerv1.Facts) { f.Actions = many(65) }},
		"toolchains": {func(f *runnerv1.Facts) { f.Toolchains = []string{long(64)} }, func(f *runnerv1.Facts) { f.Toolchains = []string{long(65)} }},
		"keys":       {func(f *runnerv1.Facts) { f.SecondKeys = nil }, func(f *runnerv1.Facts) { f.SecondKeys = []string{"turn\x00"} }},
		"harnesses":  {func(f *runnerv1.Facts) { f.Harnesses = harnesses(64) }, func(f *runnerv1.Facts) { f.Harnesses = harnesses(65) }},
		"harness":    {func(f *runnerv1.Facts) { f.Harnesses[0].Name = long(64) }, func(f *runnerv1.Facts) { f.Harnesses[0].Name = "native\r" }},
		"slots":      {func(f *runnerv1.Facts) { f.Slots = 0 }, func(f *runnerv1.Facts) { f.Slots = -1 }},
		"quota":      {func(f *runnerv1.Facts) { f.Quota = nil }, func(f *runnerv1.Facts) { f.Quota.MaxTokensPerDay = -1 }},
	} {
		good, bad := proto.CloneOf(honest()), proto.CloneOf(honest())
		c.good(good)
		c.bad(bad)
		if err := facts.Check(good); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := facts.Check(bad); protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), "bivouac-edge doctor") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

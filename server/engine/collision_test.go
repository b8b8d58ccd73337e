package engine

import (
	"testing"

	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/policy"
)

// No definition with two tools of one alias is stored today; one that an older
// server stored is explained, and nothing of it is called offered.
func TestCollisionIsExplained(t *testing.T) {
	sandbox := runtimev1.Placement_PLACEMENT_SANDBOX
	f := effective{agent: policy.Agent{Name: "a", Placement: "service", Tools: []policy.Tool{
		{Ref: "http:read_file", Alias: "read_file", HTTP: &policy.HTTPTool{}},
		{Ref: "sandbox.read", Alias: "read_file", Placement: sandbox},
		{Ref: "sandbox.shell", Alias: "shell", Placement: sandbox},
		{Ref: "http:note", Alias: "note", HTTP: &policy.HTTPTool{}},
	}}}
	offered := []*runtimev1.Tool{{Ref: "http:note", Alias: "note"}}
	for i, want := range []struct{ state, by string }{
		{ToolWithheld, byCollision}, {ToolWithheld, byCollision}, {ToolWithheld, byPolicy}, {ToolOffered, ""},
	} {
		if got := f.judge(f.agent.Tools[i], offered); got.State != want.state || got.By != want.by || (got.Why == "") != (want.by == "") {
			t.Errorf("%s: %+v", got.Ref, got)
		}
	}
}

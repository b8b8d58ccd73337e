package cli

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/finding"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/api/apiv1"
)

// A machine that takes no work is a warning with its name and the command, which
// names the state directory where it is known; one that works is none.
func TestMachinesThatTakeNoWork(t *testing.T) {
	data := t.TempDir()
	if err := os.MkdirAll(filepath.Join(data, "edge"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "edge", "enrolment.json"), []byte(`{"runner_id":"run_dev"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &app{config: filepath.Join(data, "login")}
	sound := func(change func(*apiv1.Runner)) []*apiv1.Runner {
		m := &apiv1.Runner{Id: "run_1", Name: "laptop", State: "ACTIVE", Connected: true, Slots: 2, Boundary: "process"}
		change(m)
		return []*apiv1.Runner{m}
	}
	for name, c := range map[string]struct {
		runners []*apiv1.Runner
		level   finding.Level
		what    string
		mend    string
	}{
		"works":           {sound(func(*apiv1.Runner) {}), finding.OK, "laptop is connected", ""},
		"offline":         {sound(func(m *apiv1.Runner) { m.Connected = false }), finding.Warning, "laptop is offline", "bivouac-edge doctor  (on that machine)"},
		"paused":          {sound(func(m *apiv1.Runner) { m.Paused = true }), finding.Warning, "laptop is paused", "bivouac-edge resume  (on that machine)"},
		"without slots":   {sound(func(m *apiv1.Runner) { m.Slots = 0 }), finding.Warning, "no slot", "raise slots"},
		"without sandbox": {sound(func(m *apiv1.Runner) { m.SandboxProblem = "no bwrap" }), finding.Warning, "no bwrap", "bivouac-edge doctor"},
		"without a way":   {sound(func(m *apiv1.Runner) { m.Problem = "no way to the broker" }), finding.Warning, "laptop: no way to the broker", "bivouac-edge doctor  (on that machine)"},
		"of dev, offline": {sound(func(m *apiv1.Runner) { m.Id, m.Connected = "run_dev", false }), finding.Warning, "laptop is offline", "bivouac-edge run --state " + filepath.Join(data, "edge") + ", or bivouac dev --data " + data},
		"of dev, paused":  {sound(func(m *apiv1.Runner) { m.Id, m.Paused = "run_dev", true }), finding.Warning, "laptop is paused", "bivouac-edge resume --state " + filepath.Join(data, "edge")},
		"none":            {nil, finding.Warning, "no machine", "bivouac edge invite"},
		"revoked":         {sound(func(m *apiv1.Runner) { m.State = "REVOKED" }), finding.Warning, "no machine", "bivouac edge invite"},
	} {
		r := finding.From("here")
		judgeMachines(r, c.runners, a.devEdge)
		if len(r.All) != 1 || r.All[0].Level != c.level || !strings.Contains(r.All[0].What, c.what) || !strings.HasPrefix(r.All[0].Mend, c.mend) {
			t.Errorf("%s: %+v", name, r.All)
		}
	}
}

// What a sandbox lacked, and how many calls failed, is said where the patch is.
func TestTroubleIsSaid(t *testing.T) {
	event := func(status, text string) *apiv1.Event {
		b, err := proto.Marshal(&runtimev1.ToolResult{Text: text})
		if err != nil {
			t.Fatal(err)
		}
		return &apiv1.Event{Type: "tool.finished", Data: `{"status":"` + status + `","code":"timeout","tool":"sandbox.shell"}`, Payload: base64.StdEncoding.EncodeToString(b)}
	}
	for name, c := range map[string]struct {
		events []*apiv1.Event
		want   []string
	}{
		"all well":        {[]*apiv1.Event{event("ok", "done")}, nil},
		"a failure":       {[]*apiv1.Event{event("ok", "done"), event("failed", "no such file\nsecond")}, []string{"1 tool call failed, and bivouac events trn_1", "sandbox.shell (timeout): no such file\\nsecond"}},
		"two failures":    {[]*apiv1.Event{event("failed", "no"), event("failed", "no")}, []string{"2 tool calls failed", "sandbox.shell (timeout): no"}},
		"no go":           {[]*apiv1.Event{event("ok", "exit code 127\nsh: 1: go: not found\n")}, []string{"the sandbox has no go:", "toolchain"}},
		"no npm":          {[]*apiv1.Event{event("ok", "bash: line 1: npm: command not found")}, []string{"the sandbox has no npm:"}},
		"something else":  {[]*apiv1.Event{event("ok", "404 page not found")}, nil},
		"words about one": {[]*apiv1.Event{event("ok", "note: go: not found in the list")}, nil},
	} {
		f := &follower{app: &app{}, turn: "trn_1", tools: map[string]string{}, denied: map[string]string{}}
		for _, e := range c.events {
			f.sentence(t.Context(), e)
		}
		got := f.trouble()
		if len(c.want) == 0 && got != "" {
			t.Errorf("%s: %q", name, got)
		}
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q lacks %q", name, got, want)
			}
		}
	}
}

// A reason that names a next step is one that turns end for.
func TestNextStepsAreOfReasons(t *testing.T) {
	for reason, next := range nextOf {
		if _, ok := reasonCode[reason]; !ok || next == "" {
			t.Errorf("%s: %q", reason, next)
		}
	}
}

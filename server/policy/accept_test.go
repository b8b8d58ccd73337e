package policy

import (
	"slices"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/loop/schema"
	"bivouac/edge/runtime/runtimev1"
)

var (
	laptop = Machine{Runner: "run_1", Name: "laptop", Actions: []string{"files.list", "files.read", "files.write"}}
	desk   = Machine{Runner: "run_2", Name: "desk", Actions: []string{"files.read"}}
	twin   = Machine{Runner: "run_3", Name: "laptop", Actions: []string{"files.read"}}
)

func refs(tools []*runtimev1.Tool) string {
	out := []string{}
	for _, t := range tools {
		out = append(out, t.Ref)
	}
	return strings.Join(out, " ")
}

func accept(t *testing.T, a Agent, machines ...Machine) []*runtimev1.Tool {
	t.Helper()
	tools, err := AcceptedSet(a, machines)
	if err != nil {
		t.Fatal(err)
	}
	return tools
}

// TestAcceptedSet: policy ∩ live enumeration, never wider. INV-10.
func TestAcceptedSet(t *testing.T) {
	a := parse(t, example(t, "assistant"))
	for name, c := range map[string]struct {
		machines []Machine
		want     string
	}{
		"no machine":  {nil, "http:forecast"},
		"one machine": {[]Machine{laptop}, "files.list files.read files.write http:forecast"},
		"a weak one":  {[]Machine{desk}, "files.read http:forecast"},
		"two":         {[]Machine{laptop, desk}, "files.list files.read files.write http:forecast"},
	} {
		if got := refs(accept(t, a, c.machines...)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	only := a
	only.Runners = []string{"desk"}
	if got := refs(accept(t, only, laptop, desk)); got != "files.read http:forecast" {
		t.Errorf("with a runners list: %s", got)
	}
	for _, tool := range accept(t, a, laptop) {
		if want := tool.Ref == "files.write"; tool.NeedsApproval != want {
			t.Errorf("%s needs approval: %t", tool.Ref, tool.NeedsApproval)
		}
		if want := map[bool]string{true: "weather"}[tool.Ref == "http:forecast"]; tool.Destination != want {
			t.Errorf("%s has destination %q", tool.Ref, tool.Destination)
		}
	}
}

func TestAcceptedSetRefusesOneAliasTwice(t *testing.T) {
	a := parse(t, example(t, "assistant"))
	a.Tools[3].Alias = "files_read"
	if _, err := AcceptedSet(a, []Machine{laptop}); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("one alias in two placements: %v", err)
	}
	if _, err := AcceptedSet(a, nil); err == nil {
		t.Error("one alias in two placements is an error even while one of them is away")
	}
}

func TestSandboxToolsNeedAWorkspace(t *testing.T) {
	c := parse(t, example(t, "coder"))
	if got := len(accept(t, c)); got != 5 {
		t.Errorf("a runner-placed agent has %d of 5 sandbox tools", got)
	}
	c.Placement = "service"
	if got := accept(t, c); len(got) != 0 {
		t.Errorf("a service-placed agent has %s", refs(got))
	}
}

// TestMachineArgument: where several machines offer an action the model must
// name one, and its choice is no part of what the runner gets.
func TestMachineArgument(t *testing.T) {
	a := parse(t, example(t, "assistant"))
	schemaOf := func(ref string, machines ...Machine) string {
		tools := accept(t, a, machines...)
		i := slices.IndexFunc(tools, func(x *runtimev1.Tool) bool { return x.Ref == ref })
		if i < 0 {
			t.Fatalf("no %s in %s", ref, refs(tools))
		}
		return tools[i].InputSchema
	}
	if got := schemaOf("files.read", laptop); strings.Contains(got, MachineArgument) {
		t.Errorf("one machine: %s", got)
	}
	if got := schemaOf("files.list", laptop, desk); strings.Contains(got, MachineArgument) {
		t.Errorf("one machine that allows it: %s", got)
	}
	got := schemaOf("files.read", laptop, desk)
	s, err := schema.Compile(got)
	if err != nil {
		t.Fatal(err)
	}
	for value, ok := range map[string]bool{
		`{"machine":"desk","path":"a"}`:   true,
		`{"machine":"laptop","path":"a"}`: true,
		`{"path":"a"}`:                    false,
		`{"machine":"server","path":"a"}`: false,
	} {
		if err := s.Validate([]byte(value)); (err == nil) != ok {
			t.Errorf("%s: %v", value, err)
		}
	}
	if got := schemaOf("files.read", laptop, twin); !strings.Contains(got, `"enum":["run_1","run_3"]`) {
		t.Errorf("two machines of one name: %s", got)
	}
}

// TestChooseMachine: the named machine, or the only one; never another. INV-11.
func TestChooseMachine(t *testing.T) {
	a := parse(t, example(t, "assistant"))
	only := a
	only.Runners = []string{"desk"}
	for name, c := range map[string]struct {
		agent     Agent
		ref, args string
		machines  []Machine
		want      protocol.RunnerID
		code      protocol.Code
	}{
		"the only one":         {a, "files.read", `{"path":"a"}`, []Machine{laptop}, "run_1", ""},
		"the only allowing":    {a, "files.list", `{"path":"a"}`, []Machine{laptop, desk}, "run_1", ""},
		"by name":              {a, "files.read", `{"machine":"desk","path":"a"}`, []Machine{laptop, desk}, "run_2", ""},
		"by id":                {a, "files.read", `{"machine":"run_3","path":"a"}`, []Machine{laptop, twin}, "run_3", ""},
		"shared name":          {a, "files.read", `{"machine":"laptop","path":"a"}`, []Machine{laptop, twin}, "", protocol.CodePolicyDenied},
		"none named":           {a, "files.read", `{"path":"a"}`, []Machine{laptop, desk}, "", protocol.CodeInvalidArgument},
		"gone since":           {a, "files.read", `{"machine":"desk","path":"a"}`, []Machine{laptop}, "", protocol.CodePolicyDenied},
		"no machine":           {a, "files.read", `{"path":"a"}`, nil, "", protocol.CodePolicyDenied},
		"does not allow it":    {a, "files.write", `{"machine":"desk","path":"a"}`, []Machine{laptop, desk}, "", protocol.CodePolicyDenied},
		"not in runners":       {only, "files.read", `{"machine":"laptop","path":"a"}`, []Machine{laptop, desk}, "", protocol.CodePolicyDenied},
		"runners leave one":    {only, "files.read", `{"path":"a"}`, []Machine{laptop, desk}, "run_2", ""},
		"digest with write":    {a, RefDigest, `{"path":"a"}`, []Machine{laptop}, "run_1", ""},
		"digest without write": {a, RefDigest, `{"path":"a"}`, []Machine{desk}, "", protocol.CodePolicyDenied},
		"machine of no text":   {a, "files.read", `{"machine":1,"path":"a"}`, []Machine{laptop}, "", protocol.CodeInvalidArgument},
	} {
		m, args, err := ChooseMachine(c.agent, c.ref, c.args, c.machines)
		if m.Runner != c.want || protocol.CodeOf(err) != c.code {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
		if err == nil && args != `{"path":"a"}` {
			t.Errorf("%s: the runner gets %s", name, args)
		}
	}
}

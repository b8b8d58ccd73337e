package policy

import (
	"reflect"
	"slices"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"

	"google.golang.org/protobuf/proto"
)

func snapshot(t *testing.T, change func(*SnapshotParams)) Snapshot {
	t.Helper()
	src := example(t, "assistant")
	p := SnapshotParams{Agent: parse(t, src), AgentDigest: DefinitionDigest([]byte(src)), Machines: []Machine{laptop, desk},
		Generation: 1, Grants: []Grant{{ID: "grt_00000000000000000000000001", Credentials: []string{"a"}}}, BrokerPool: "default", BrokerBoot: "boot-1"}
	if change != nil {
		change(&p)
	}
	s, err := NewSnapshot(p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSnapshotRoundTrip(t *testing.T) {
	s := snapshot(t, nil)
	b, digest, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := DecodeSnapshot(b, digest)
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.Tools {
		if !proto.Equal(s.Tools[i], back.Tools[i]) {
			t.Errorf("tool %d came back as %v", i, back.Tools[i])
		}
	}
	if !reflect.DeepEqual(s.Agent, back.Agent) || back.PolicyDigest != s.PolicyDigest || back.DataBoundary != "personal" {
		t.Errorf("came back as %+v", back)
	}
	again, second, err := back.Encode()
	if err != nil || second != digest || string(again) != string(b) {
		t.Errorf("encodes to other bytes: %v", err)
	}
	if _, err := DecodeSnapshot(append(b, ' '), digest); protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("changed bytes: %v", err)
	}
}

// TestPolicyDigest: whatever decides what the turn may do is another policy; what
// does not is the same.
func TestPolicyDigest(t *testing.T) {
	seen := map[string]string{}
	for name, change := range map[string]func(*SnapshotParams){
		"base":       nil,
		"definition": func(p *SnapshotParams) { p.AgentDigest = "sha256:other" },
		"machines":   func(p *SnapshotParams) { p.Machines = []Machine{laptop} },
		"generation": func(p *SnapshotParams) { p.Generation = 2 },
		"grant": func(p *SnapshotParams) {
			p.Grants = []Grant{{ID: "grt_00000000000000000000000002", Credentials: []string{"a"}}}
		},
		"credential": func(p *SnapshotParams) {
			p.Grants = []Grant{{ID: "grt_00000000000000000000000001", Credentials: []string{"b"}}}
		},
		"one more": func(p *SnapshotParams) { p.Grants = append(p.Grants, Grant{ID: "grt_0"}) },
		"none":     func(p *SnapshotParams) { p.Grants = nil },
		"boundary": func(p *SnapshotParams) { p.Agent.DataBoundary = "work" },
		"profile":  func(p *SnapshotParams) { p.Agent.Profile = "enterprise" },
		"approval": func(p *SnapshotParams) { p.Agent.Tools[0].Approval = "always" },
	} {
		d := snapshot(t, change).PolicyDigest
		if other, same := seen[d]; same {
			t.Errorf("%s and %s have one policy digest", name, other)
		}
		seen[d] = name
	}
	if got := snapshot(t, func(p *SnapshotParams) { p.BrokerBoot = "boot-2" }).PolicyDigest; seen[got] != "base" {
		t.Error("another boot of the broker is another policy")
	}
}

// TestGiving: the newest grant is the turn's own, and each credential comes from the
// newest that gives it; what was not frozen gives nothing. INV-10.
func TestGiving(t *testing.T) {
	s := snapshot(t, func(p *SnapshotParams) {
		p.Grants = []Grant{{ID: "grt_00000000000000000000000003"}, {ID: "grt_00000000000000000000000002", Credentials: []string{"b"}}, {ID: "grt_00000000000000000000000001", Credentials: []string{"a", "b"}}}
	})
	if s.Grant != "grt_00000000000000000000000003" {
		t.Errorf("the turn's own is %s", s.Grant)
	}
	for credential, want := range map[string][]protocol.GrantID{"a": {"grt_00000000000000000000000001"}, "b": {"grt_00000000000000000000000002", "grt_00000000000000000000000001"}, "c": nil} {
		if got := s.Giving(credential); !slices.Equal(got, want) {
			t.Errorf("%s is given by %v, not %v", credential, got, want)
		}
	}
	if none := snapshot(t, func(p *SnapshotParams) { p.Grants = nil }); none.Grant != "" || none.Giving("a") != nil {
		t.Errorf("without a grant: %+v", none)
	}
}

// TestEffectiveNarrowsOnly is INV-10 for a running turn.
func TestEffectiveNarrowsOnly(t *testing.T) {
	s := snapshot(t, func(p *SnapshotParams) { p.Machines = []Machine{desk} })
	frozen := refs(s.Tools)
	if frozen != "files.read http:forecast" {
		t.Fatalf("frozen: %s", frozen)
	}
	if got := refs(s.Effective([]Machine{laptop, desk})); got != frozen {
		t.Errorf("a machine that came later widened the turn: %s", got)
	}
	if got := refs(s.Effective(nil)); got != "http:forecast" {
		t.Errorf("without a machine: %s", got)
	}
	read, _ := s.Accepted("files_read")
	if err := s.Reauthorise(read, []Machine{laptop}); err != nil {
		t.Errorf("another machine offers it now: %v", err)
	}
	if err := s.Reauthorise(read, nil); protocol.CodeOf(err) != protocol.CodePolicyDenied {
		t.Errorf("no machine offers it: %v", err)
	}
	moved := proto.CloneOf(read)
	moved.Placement = runtimev1.Placement_PLACEMENT_GATEWAY
	foreign := &runtimev1.Tool{Ref: "files.write", Alias: "files_write", Placement: runtimev1.Placement_PLACEMENT_DEVICE}
	for _, tool := range []*runtimev1.Tool{moved, foreign, nil} {
		if err := s.Reauthorise(tool, []Machine{laptop, desk}); protocol.CodeOf(err) != protocol.CodePolicyDenied {
			t.Errorf("%v: %v", tool, err)
		}
	}
}

// TestNarrow: in every field the lower value, and zero is no opinion. INV-10.
func TestNarrow(t *testing.T) {
	typ := reflect.TypeFor[Limits]()
	fill := func(n int64) Limits {
		var l Limits
		for i := range typ.NumField() {
			reflect.ValueOf(&l).Elem().Field(i).SetInt(n)
		}
		return l
	}
	low, high := fill(3), fill(5)
	for _, c := range []struct{ a, b, want Limits }{
		{low, high, low}, {high, low, low}, {high, Limits{}, high}, {Limits{}, low, low},
	} {
		if got := c.a.Narrow(c.b); got != c.want {
			t.Errorf("%+v and %+v narrow to %+v", c.a, c.b, got)
		}
	}
}

func TestSpec(t *testing.T) {
	s := snapshot(t, nil)
	before := []*runtimev1.Message{{Role: runtimev1.Role_ROLE_USER}, {Role: runtimev1.Role_ROLE_ASSISTANT}}
	resume := &runtimev1.LoopState{ModelCalls: 2}
	spec := s.Spec(SpecParams{Attempt: "att_1", Conversation: before[:1:2], Prompt: "Hello", Resume: resume})
	if len(spec.Messages) != 2 || spec.Messages[1].Role != runtimev1.Role_ROLE_USER || spec.Messages[1].Blocks[0].GetText() != "Hello" {
		t.Errorf("messages %v", spec.Messages)
	}
	if before[1].Role != runtimev1.Role_ROLE_ASSISTANT {
		t.Error("the prompt overwrote the caller's conversation")
	}
	if spec.Instructions != s.Agent.Instructions || spec.Model != "scripted" || spec.AttemptId != "att_1" || spec.Resume != resume ||
		len(spec.Tools) != len(s.Tools) || spec.MaxOutputTokens != 1024 {
		t.Errorf("spec %v", spec)
	}
	l := spec.Limits
	for name, v := range map[string]int64{"model calls": int64(l.MaxModelCalls), "tool calls": int64(l.MaxToolCalls), "corrections": int64(l.MaxCorrections),
		"tokens": l.MaxTokens, "cost": l.MaxCostMicroUsd, "wall": l.MaxWallMs, "result": int64(l.MaxResultBytes)} {
		if v <= 0 {
			t.Errorf("no limit on %s", name)
		}
	}
	b := s.Agent.Sandbox.Limits()
	if b.MemoryBytes <= 0 || b.CpuMillis <= 0 || b.Pids <= 0 || b.DiskBytes <= 0 || b.ExecTimeoutMs <= 0 || b.OutputBytes <= 0 {
		t.Errorf("sandbox limits %v", b)
	}
}

func TestResourceKey(t *testing.T) {
	if ResourceKey("files.write", "sha256:1") == ResourceKey("files.read", "sha256:1") || ResourceKey("a", "1") == ResourceKey("a", "2") {
		t.Error("two effects share a resource key")
	}
}

func TestSnapshotTool(t *testing.T) {
	s := snapshot(t, func(p *SnapshotParams) { p.Machines = nil })
	if tool, ok := s.Tool("files.write"); !ok || tool.Alias != "files_write" {
		t.Errorf("a tool of the definition: %+v, %t", tool, ok)
	}
	if _, ok := s.Tool("files.digest"); ok {
		t.Error("an internal action is a tool")
	}
	if _, ok := s.Accepted("files_write"); ok {
		t.Error("a tool without a machine is accepted")
	}
}

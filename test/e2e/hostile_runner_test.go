//go:build linux

package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/runnerv1/runnerv1connect"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/state"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
	"bivouac/test/e2e/stack"
)

// rogue is a machine whose owner speaks the protocol by hand, with its real key.
type rogue struct {
	x              *hostile
	who            string
	server         runnerv1connect.RunnerServiceClient
	broker         brokerv1connect.BrokerServiceClient
	serverL, links *link.Client // to the server, and to the broker
	epoch          int64
}

// rogue joins a machine of a person and takes its key in hand, instead of running its
// daemon.
func (x *hostile) rogue(p *person, name string) *rogue {
	x.t.Helper()
	e, err := x.Join(x.t.Context(), stack.EdgeConfig{Name: name, Owner: p.api})
	if err != nil {
		x.t.Fatal(err)
	}
	x.Edges = x.Edges[:len(x.Edges)-1] // nothing runs there
	dir, err := state.Open(e.State)
	if err != nil {
		x.t.Fatal(err)
	}
	enrolled, err := dir.Enrolment()
	if err != nil {
		x.t.Fatal(err)
	}
	dial := func(address string, role identity.Role) *link.Client {
		c, err := link.NewClient(link.Config{Address: address, Trust: link.Trust{Role: role, Root: x.root()}, Certificate: dir.Certificate})
		if err != nil {
			x.t.Fatal(err)
		}
		x.t.Cleanup(func() { c.Close() })
		return c
	}
	r := &rogue{x: x, who: name, serverL: dial(enrolled.Server, identity.RoleServer), links: dial(enrolled.Broker, identity.RoleBroker)}
	r.server = runnerv1connect.NewRunnerServiceClient(r.serverL, r.serverL.URL())
	r.broker = brokerv1connect.NewBrokerServiceClient(r.links, r.links.URL())
	res, err := r.server.Connect(x.t.Context(), &runnerv1.ConnectRequest{CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(), BootNonce: "boot-" + name,
		Facts: &runnerv1.Facts{Os: "linux", Arch: "amd64", Slots: 4, Boundary: "process", Limits: "cgroup", Disk: "sized", Freezer: "cgroup", Actions: []string{"files.read"},
			Adapters: []string{"native"}, Harnesses: []*runnerv1.Harness{{Name: "native", Version: "0.1.0", Protocol: 1}}}})
	if err != nil {
		x.t.Fatal(protocol.FromConnect(err))
	}
	r.epoch = res.GetEpoch()
	r.sees("connect", res, nil)
	return r
}

// sees notes what a machine was answered.
func (r *rogue) sees(what string, m proto.Message, err error) {
	b, _ := protojson.Marshal(m) // a nil message has no text
	r.x.evidence.note("answers to machines", fmt.Appendf(nil, "%s %s: %s %v", r.who, what, b, err))
}

// claim waits for an offer and takes it.
func (r *rogue) claim() (attempt string, terms *runnerv1.LeaseTerms) {
	r.x.t.Helper()
	ctx, cancel := context.WithTimeout(r.x.t.Context(), time.Minute)
	defer cancel()
	mail, err := r.server.Attach(ctx, &runnerv1.AttachRequest{Epoch: r.epoch})
	if err != nil {
		r.x.t.Fatal(err)
	}
	defer mail.Close()
	for mail.Receive() {
		r.sees("mail", mail.Msg(), nil)
		if o := mail.Msg().GetOffer(); o != nil {
			res, err := r.server.Claim(ctx, &runnerv1.ClaimRequest{AttemptId: o.GetAttemptId(), Epoch: r.epoch, BootNonce: "n1"})
			r.sees("claim", res, err)
			if err != nil {
				r.x.t.Fatal(protocol.FromConnect(err))
			}
			return o.GetAttemptId(), res.GetTerms()
		}
	}
	r.x.t.Fatalf("no offer came: %v", mail.Err())
	return "", nil
}

// model asks the broker for an answer under a capability.
func (r *rogue) model(capability, route string) (text string, err error) {
	ctx, cancel := context.WithTimeout(r.x.t.Context(), 20*time.Second)
	defer cancel()
	s, err := r.broker.CallModel(ctx, &brokerv1.CallModelRequest{Capability: capability, CallId: "cal_1", Request: &runtimev1.ModelRequest{Model: route, MaxOutputTokens: 100,
		Messages: []*runtimev1.Message{{Role: runtimev1.Role_ROLE_USER, Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_Text{Text: "hello"}}}}}}})
	if err != nil {
		return "", protocol.FromConnect(err)
	}
	defer s.Close()
	for s.Receive() {
		r.sees("model", s.Msg(), nil)
		text += s.Msg().GetEvent().GetTextDelta()
	}
	err = protocol.FromConnect(s.Err())
	r.sees("model", nil, err)
	return text, err
}

// forged capabilities: the claims that a machine has, with other words in them.
func forged(capability string) map[string]string {
	part := strings.Split(capability, ".")
	body, err := base64.RawURLEncoding.DecodeString(part[1])
	var claims map[string]any
	if err != nil || json.Unmarshal(body, &claims) != nil {
		return nil
	}
	out := map[string]string{"none": "", "no words": "a.b.c", "unsigned": base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + part[1] + "."}
	for name, change := range map[string]any{"fnc": 1 << 40, "dst": []string{"mirror", "tickets"}, "tls": []string{"http:take_key"}, "cnf": "another", "exp": 4e9, "ten": "ten_01aaaaaaaaaaaaaaaaaaaaaaaa", "mdl": []string{"scripted", "other"}} {
		was := claims[name]
		claims[name] = change
		b, err := json.Marshal(claims)
		if err != nil {
			return nil
		}
		claims[name] = was
		out["another "+name] = part[0] + "." + base64.RawURLEncoding.EncodeToString(b) + "." + part[2]
	}
	return out
}

// plunder is what a machine does with a turn that it holds rightfully, beside what the
// turn is for; other is a machine that holds nothing.
func (x *hostile) plunder(owner *person, machine, other *rogue) (turn string) {
	x.t.Helper()
	turn = owner.submit("run", "hello", "--agent", "burglar", "--workspace", owner.project("plundered", map[string]string{"a": "a\n"})).ID
	attempt, terms := machine.claim()
	capability := terms.GetCapability()
	if text, err := machine.model(capability, "scripted"); err != nil || text != "Yes." {
		x.t.Errorf("the rightful call of the model: %q %v", text, err)
	}
	refused := func(what string, err error) {
		if err == nil {
			x.t.Errorf("a machine may: %s", what)
		}
		x.evidence.note("answers to machines", fmt.Appendf(nil, "%s: %v", what, err))
	}
	_, err := other.model(capability, "scripted")
	refused("replay another's capability", err)
	_, err = machine.model(capability, "other")
	refused("call another model", err)
	all := forged(capability)
	if len(all) < 8 {
		x.t.Fatal("the capability has no claims to forge")
	}
	for name, token := range all {
		_, err := machine.model(token, "scripted")
		refused("use a capability with "+name, err)
	}
	for _, take := range takes {
		res, err := machine.broker.Invoke(x.t.Context(), &brokerv1.InvokeRequest{Capability: capability, ActionId: "act_01aaaaaaaaaaaaaaaaaaaaaaaa", Arguments: `{"mode":"text"}`, MaxOutputBytes: 1000,
			Tool: &brokerv1.HttpTool{Ref: "http:" + take.alias, Destination: take.destination, Method: "GET", Path: "/" + take.alias + "?mode={mode}", Credential: take.credential, Reads: true}})
		machine.sees("invoke", res, err)
		refused("call "+take.alias, err)
	}
	for _, m := range methods(brokerv1.File_bivouac_broker_v1_broker_proto) {
		if code := called(x.t.Context(), machine.links, m); code == "" && !strings.HasSuffix(m.path, "/CallModel") {
			x.t.Errorf("a machine may call %s", m.path)
		}
	}
	x.fences(machine, other, attempt, terms.GetFence())
	owner.must("cancel", turn)
	await(x.t, "the end of the capability", func() error {
		if _, err := machine.model(capability, "scripted"); err == nil {
			return fmt.Errorf("it is admitted after its turn's end")
		}
		return nil
	})
	return turn
}

// fences that a machine does not hold, and records that it may not write.
func (x *hostile) fences(machine, other *rogue, attempt string, fence int64) {
	x.t.Helper()
	ctx := x.t.Context()
	asks := func(alias string) *runnerv1.Record {
		return &runnerv1.Record{Seq: 2, AtUs: 2, Kind: &runnerv1.Record_ToolRequested{ToolRequested: &runnerv1.ToolRequested{CallId: "c-" + alias, Alias: alias, Arguments: `{"mode":"text"}`}}}
	}
	started := &runnerv1.Record{Seq: 1, AtUs: 1, Kind: &runnerv1.Record_Started{Started: &runnerv1.Started{Boundary: "process", Limits: "cgroup"}}}
	for _, r := range []*rogue{machine, other} {
		for _, f := range []int64{fence, fence + 1, fence - 1, 1 << 60, 0, -1} {
			renewed, err := r.server.Renew(ctx, &runnerv1.RenewRequest{Epoch: r.epoch, Leases: []*runnerv1.HeldLease{{AttemptId: attempt, Fence: f}}})
			r.sees(fmt.Sprint("renew ", f), renewed, err)
			for _, v := range renewed.GetLeases() {
				if (r != machine || f != fence) && (v.GetAlive() || v.GetTerms().GetCapability() != "") {
					x.t.Errorf("%s renews with the fence %d", r.who, f-fence)
				}
			}
			for _, alias := range []string{"take_key", "search", "files_read"} {
				res, err := r.server.Report(ctx, &runnerv1.ReportRequest{AttemptId: attempt, Fence: f, Epoch: r.epoch, Records: []*runnerv1.Record{started, asks(alias)}})
				r.sees("report", res, err)
				if err == nil && !res.GetEvidenceOnly() && (r != machine || f != fence) {
					x.t.Errorf("%s reports with the fence %d", r.who, f-fence)
				}
			}
		}
		claimed, err := r.server.Claim(ctx, &runnerv1.ClaimRequest{AttemptId: attempt, Epoch: r.epoch, BootNonce: "another"})
		r.sees("claim again", claimed, err)
		if err == nil {
			x.t.Errorf("%s claims what is claimed", r.who)
		}
		for _, m := range methods(runnerv1.File_bivouac_runner_v1_runner_proto) {
			if !m.streams && !strings.HasSuffix(m.path, "/Leave") {
				r.blank(m)
			}
		}
	}
}

// blank calls a method of the server with nothing in the request.
func (r *rogue) blank(m method) {
	res := connect.NewClient[emptypb.Empty, emptypb.Empty](r.serverL, r.serverL.URL()+m.path)
	_, err := res.CallUnary(r.x.t.Context(), connect.NewRequest(&emptypb.Empty{}))
	r.x.evidence.note("answers to machines", fmt.Appendf(nil, "%s blank %s: %v", m.kind.Output().FullName(), m.path, err))
}

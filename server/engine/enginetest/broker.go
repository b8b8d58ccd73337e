package enginetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
	"bivouac/server/ledger"
	"bivouac/server/policy"
)

// Effect is one time that an upstream did something.
type Effect struct {
	Action    protocol.ActionID
	Tool      string
	Arguments string
}

// ToolFunc is an upstream behind the broker.
type ToolFunc func(req *brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error)

// Broker is a broker in process. Its zero value is not usable: see NewBroker.
type Broker struct {
	Pool string
	// Floors reads the feed as it is now.
	Floors func() []policy.Floor
	// Keys are the certified keys of the feed.
	Keys capability.KeyFunc
	// Presenter is the TLS thumbprint of whoever calls.
	Presenter string
	// Receipt signs receipts; nil: what it makes is no real signature.
	Receipt func(receipt []byte) (string, error)
	// Accepted epochs of restored stores, whose ledgers may begin anew.
	Accepted map[uint32]bool
	heads    map[protocol.TenantID]ledger.Head // signed last

	mu     sync.Mutex // guards below
	boot   string
	final  bool // see Certain
	since  time.Time
	model  ModelFunc
	tools  map[string]ToolFunc
	down   bool
	barred map[string]bool  // destinations without a path
	lose   map[string]*loss // by tool
	looks  map[string]ToolFunc
	// Asked counts what it was asked for, also while it is down: sendings, questions
	// to the call log, and look-ups.
	asked   Asked
	log     map[protocol.ActionID]*logged
	byKey   map[string]*brokerv1.InvokeResponse
	effects []Effect
	revoked map[protocol.GrantID]time.Time
	pending string                     // why the authority does not take ends
	parts   map[protocol.GrantID]parts // of grants that were renewed
	step    func(string)               // before each step of a rotation
	calling func()                     // before each call
	// asOf and restored: see PutBack.
	asOf, restored time.Time
	// disowned are held elsewhere by now.
	disowned map[protocol.GrantID]bool
	drawn    map[string]int64 // by slice, over boots
	largest  map[string]int64
	used     map[string]use
	known    []string // boots of which every draw is known
	calls    []*runtimev1.ModelRequest
	refused  []string // codes of refused requests
	tokens   []string // capabilities that were presented
}

type logged struct {
	state  brokerv1.CallState
	status int32
	digest string
}

// use of one slice.
type use struct {
	input, output, calls int64
	open                 int32
}

// callCost is what each model call draws, in millionths of a US dollar.
const callCost = 10

// NewBroker makes one that knows the route "scripted" and no tool.
func NewBroker(keys capability.KeyFunc, presenter string) *Broker {
	return &Broker{Pool: "default", Keys: keys, Presenter: presenter, Floors: func() []policy.Floor { return nil },
		boot: "boot-1", since: time.Now(), tools: map[string]ToolFunc{}, lose: map[string]*loss{}, looks: map[string]ToolFunc{},
		log: map[protocol.ActionID]*logged{}, byKey: map[string]*brokerv1.InvokeResponse{},
		revoked: map[protocol.GrantID]time.Time{}, parts: map[protocol.GrantID]parts{}, disowned: map[protocol.GrantID]bool{}, heads: map[protocol.TenantID]ledger.Head{}, drawn: map[string]int64{}, largest: map[string]int64{}, used: map[string]use{}}
}

// Say sets what the model answers.
func (b *Broker) Say(m ModelFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.model = m
}

// Serve sets the upstream of a tool.
func (b *Broker) Serve(ref string, f ToolFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tools[ref] = f
}

// Loss is where a call gets lost.
type Loss int

// Losses, in the order of a call's way.
const (
	Unlogged   Loss = iota // before the call log has it
	Unsent                 // logged, and never at the upstream
	Unanswered             // it happened, and the answer never came
	Untold                 // the answer is in the call log, and goes no further
)

type loss struct {
	left int
	at   Loss
}

// Asked counts requests to the broker.
type Asked struct{ Sent, Log, Looked int }

// LoseAnswers makes the next n calls of a tool happen without an answer.
func (b *Broker) LoseAnswers(ref string, n int) { b.Lose(ref, n, Unanswered) }

// Lose makes the next n calls of a tool get lost somewhere.
func (b *Broker) Lose(ref string, n int, at Loss) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lose[ref] = &loss{left: n, at: at}
}

// lost reports a call that gets lost there.
func (b *Broker) lost(ref string, at Loss) bool {
	l := b.lose[ref]
	if l == nil || l.left == 0 || l.at != at {
		return false
	}
	l.left--
	return true
}

// Look sets what the look-up of a tool is answered.
func (b *Broker) Look(ref string, f ToolFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looks[ref] = f
}

// Asked so far.
func (b *Broker) Asked() Asked {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked
}

// Certain makes it say of calls without an answer that none will come.
func (b *Broker) Certain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.final = true
}

// SetDown makes the broker unreachable, or reachable again.
func (b *Broker) SetDown(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
}

// Restart gives it a new boot. forget drops what it keeps on its disk: the call
// log, and what slices of earlier boots drew.
func (b *Broker) Restart(boot string, forget bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known = append(b.known, b.boot)
	b.boot, b.largest = boot, map[string]int64{}
	if forget {
		b.log, b.since = map[protocol.ActionID]*logged{}, time.Now()
		b.drawn, b.known, b.used = map[string]int64{}, nil, map[string]use{}
	}
}

// Draw spends from a slice as a call in flight of a runner would.
func (b *Broker) Draw(id protocol.SliceID, amount int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drawn[id.String()] += amount
	b.largest[id.String()] = max(b.largest[id.String()], amount)
}

// Count adds calls of a runner that the broker has settled.
func (b *Broker) Count(id protocol.SliceID, input, output, cost, calls int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drawn[id.String()] += cost
	b.count(id, use{input: input, output: output, calls: calls})
}

// Open begins a call of a runner that never ends.
func (b *Broker) Open(id protocol.SliceID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drawn[id.String()] += callCost
	b.count(id, use{open: 1})
}

// Refuse notes a call that a slice was too small for.
func (b *Broker) Refuse(id protocol.SliceID, amount int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.largest[id.String()] = max(b.largest[id.String()], amount)
}

// Effects that upstreams had, in order.
func (b *Broker) Effects() []Effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.effects)
}

// Requests that the model got, in order.
func (b *Broker) Requests() []*runtimev1.ModelRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

// Refused are the codes of the requests that were refused, in order.
func (b *Broker) Refused() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.refused)
}

// Tokens are the capabilities that were presented, in order.
func (b *Broker) Tokens() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.tokens)
}

// Present shows a capability again and asks for nothing.
func (b *Broker) Present(token string) error {
	_, err := b.admit(token, time.Now())
	return err
}

// admit verifies a capability and holds floors and grants against it.
func (b *Broker) admit(token string, now time.Time) (capability.Claims, error) {
	b.mu.Lock()
	b.tokens = append(b.tokens, token)
	b.mu.Unlock()
	c, err := capability.Verify(token, b.Keys, capability.Expect{Audience: b.Pool, Presenter: b.Presenter, Now: now})
	if err == nil {
		err = b.standing(c)
	}
	if err != nil {
		b.mu.Lock()
		b.refused = append(b.refused, string(protocol.CodeOf(err)))
		b.mu.Unlock()
	}
	return c, err
}

func (b *Broker) standing(c capability.Claims) error {
	refuse := func(what string) error {
		return protocol.Errorf(protocol.CodePermissionDenied, "the %s of the capability was taken back", what)
	}
	floors := b.Floors() // before the lock: it reads a store
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, revoked := b.revoked[c.Grant]; revoked {
		return refuse("grant")
	}
	if p, renewed := b.parts[c.Grant]; renewed && c.Action != "" && !p.open(c.SealedGrant) {
		err := protocol.Errorf(protocol.CodePermissionDenied, "the secret part of grant %s was renewed", c.Grant)
		err.Detail = protocol.DetailGrantRotated
		return err
	}
	if c.SliceBoot != b.boot {
		err := protocol.Errorf(protocol.CodeUnavailable, "the budget slice is of another boot of the broker")
		err.Detail = protocol.DetailSliceBoot
		return err
	}
	for _, f := range floors {
		value, named := int64(0), ""
		switch f.Kind {
		case policy.FloorStore:
			named, value = policy.StoreFloor, int64(c.Fence)
		case policy.FloorGrant:
			named = c.Grant.String()
		case policy.FloorRunner:
			named = c.Presenter
		case policy.FloorPrincipal:
			named = c.Principal.String()
		case policy.FloorSession:
			named = c.Session.String()
		case policy.FloorInstance:
			named, value = c.Instance.String(), c.Generation
		case policy.FloorTurn:
			if c.Attempt == "" {
				named, value = c.Turn.String(), int64(c.Fence)
			}
		case policy.FloorAttempt:
			named, value = c.Attempt.String(), int64(c.Fence)
		}
		if named != "" && named == f.ID && value < f.Minimum {
			return refuse("floor")
		}
	}
	return nil
}

// Describe tells pool, boot, route and nothing secret.
func (b *Broker) Describe(context.Context) (*brokerv1.DescribeResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, unreachable()
	}
	var asOf, restored int64
	if !b.restored.IsZero() {
		asOf, restored = b.asOf.UnixMicro(), b.restored.UnixMicro()
	}
	return &brokerv1.DescribeResponse{BrokerId: "broker", Pool: b.Pool, BootNonce: b.boot, CapabilityVersion: protocol.Current(),
		GrantsAsOfUs: asOf, GrantsRestoredUs: restored,
		Models: []*brokerv1.ModelRoute{
			{Name: "scripted", DataBoundaries: []string{"personal", "internal"}, InputMicroUsdPerMtok: 1, OutputMicroUsdPerMtok: 1, Priced: true},
			{Name: "public", DataBoundaries: []string{"public"}, Priced: true},
		},
		Destinations: []*brokerv1.Destination{{Name: "mail"}, {Name: "notes"}, {Name: "shop"}, {Name: "weather"},
			{Name: "modules", Url: "https://modules.example", Egress: "go"}},
		PathsDirectory: "/etc/paths",
	}, nil
}

func unreachable() error {
	err := protocol.Errorf(protocol.CodeUnavailable, "the broker is not reached")
	err.Detail = protocol.DetailUnreachable
	return err
}

// CallModel answers by ModelFunc.
func (b *Broker) CallModel(ctx context.Context, req *brokerv1.CallModelRequest, onDelta func(string)) (*runtimev1.ModelDone, error) {
	b.mu.Lock()
	down, model := b.down, b.model
	b.mu.Unlock()
	if down {
		return nil, unreachable()
	}
	c, err := b.admit(req.Capability, time.Now())
	if err != nil {
		return nil, err
	}
	if !slices.Contains(c.Models, req.Request.Model) {
		return nil, protocol.Errorf(protocol.CodePermissionDenied, "the capability does not name the route %q", req.Request.Model)
	}
	b.mu.Lock()
	b.calls = append(b.calls, req.Request)
	over := b.drawn[c.Slice.String()]+callCost > c.SliceCeiling
	if !over {
		b.drawn[c.Slice.String()] += callCost
		b.count(c.Slice, use{open: 1})
	}
	b.mu.Unlock()
	if over {
		return nil, protocol.Errorf(protocol.CodeBudgetExhausted, "the budget slice is used up")
	}
	done, err := model(ctx, req.Request)
	b.settle(c.Slice, done)
	if err == nil && onDelta != nil {
		for _, block := range done.GetMessage().GetBlocks() {
			if text := block.GetText(); text != "" {
				onDelta(text)
			}
		}
	}
	return done, err
}

// settle ends a call: of one that was not answered the input is spent.
func (b *Broker) settle(id protocol.SliceID, done *runtimev1.ModelDone) {
	u := use{input: promptTokens, calls: 1, open: -1}
	if done != nil {
		u.input, u.output = done.GetUsage().GetInputTokens(), done.GetUsage().GetOutputTokens()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count(id, u)
}

// promptTokens of a call that nobody waited for.
const promptTokens = 7

func (b *Broker) count(id protocol.SliceID, more use) {
	u := b.used[id.String()]
	u.input, u.output, u.calls, u.open = u.input+more.input, u.output+more.output, u.calls+more.calls, u.open+more.open
	b.used[id.String()] = u
}

// Invoke logs, then calls the upstream once for each idempotency key.
func (b *Broker) Invoke(_ context.Context, req *brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
	b.mu.Lock()
	down := b.down
	calling := b.calling
	look := b.looks[req.Tool.Ref]
	if req.Tool.Method != "GET" {
		look = nil
	}
	if look != nil {
		b.asked.Looked++
	} else {
		b.asked.Sent++
	}
	b.mu.Unlock()
	if calling != nil {
		calling()
	}
	if down {
		return nil, unreachable()
	}
	c, err := b.admit(req.Capability, time.Now())
	if err != nil {
		return nil, err
	}
	if c.Action.String() != req.ActionId || c.ArgsDigest != canonical.Digest([]byte(req.Arguments)) ||
		!slices.Contains(c.Tools, req.Tool.Ref) || !slices.Contains(c.Destinations, req.Tool.Destination) {
		return nil, protocol.Errorf(protocol.CodePermissionDenied, "the capability is for another call")
	}
	if look != nil {
		return look(req)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	broke := protocol.Errorf(protocol.CodeUnavailable, "the connection broke")
	if b.lost(req.Tool.Ref, Unlogged) {
		return nil, broke
	}
	entry := &logged{state: brokerv1.CallState_CALL_STATE_SENT}
	b.log[c.Action] = entry
	if b.lost(req.Tool.Ref, Unsent) {
		return nil, broke
	}
	resp, err := b.upstream(req)
	if err != nil {
		return nil, err
	}
	if b.lost(req.Tool.Ref, Unanswered) {
		return nil, broke
	}
	entry.state, entry.status, entry.digest = brokerv1.CallState_CALL_STATE_ANSWERED, resp.HttpStatus, resp.BodyDigest
	if b.lost(req.Tool.Ref, Untold) {
		return nil, broke
	}
	return resp, nil
}

func (b *Broker) upstream(req *brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
	keyed := req.Tool.IdempotencyHeader != ""
	if old := b.byKey[req.IdempotencyKey]; keyed && old != nil {
		return old, nil
	}
	tool := b.tools[req.Tool.Ref]
	if tool == nil {
		return nil, protocol.Errorf(protocol.CodeNotFound, "no upstream for %s", req.Tool.Ref)
	}
	resp, err := tool(req)
	if err != nil {
		return nil, err
	}
	resp.BodyDigest, resp.BodyBytes = canonical.Digest(resp.Body), int64(len(resp.Body))
	if resp.HttpStatus >= 400 {
		return resp, nil // nothing happened, and nothing is kept for the key
	}
	b.effects = append(b.effects, Effect{protocol.ActionID(req.ActionId), req.Tool.Ref, req.Arguments})
	b.byKey[req.IdempotencyKey] = resp
	return resp, nil
}

// LookupAction answers from the call log.
func (b *Broker) LookupAction(_ context.Context, id protocol.ActionID) (*brokerv1.LookupActionResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked.Log++
	if b.down {
		return nil, unreachable()
	}
	resp := &brokerv1.LookupActionResponse{State: brokerv1.CallState_CALL_STATE_ABSENT, LogSinceUs: b.since.UnixMicro()}
	if l := b.log[id]; l != nil {
		resp.State, resp.HttpStatus, resp.BodyDigest = l.state, l.status, l.digest
		resp.Final = b.final && l.state == brokerv1.CallState_CALL_STATE_SENT
	}
	return resp, nil
}

// Reach admits what no path in Barred says no to.
func (b *Broker) Reach(_ context.Context, req *brokerv1.ReachRequest) (*brokerv1.ReachResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, unreachable()
	}
	one := func(destination string) *brokerv1.Reach {
		if b.barred[destination] {
			return &brokerv1.Reach{By: "path", Code: string(protocol.CodePolicyDenied), Reason: "agent-" + req.GetAgent() + " may not reach " + destination}
		}
		return &brokerv1.Reach{Admitted: true, Intention: "/etc/broker/paths/" + destination + ".hcl:1 allows it"}
	}
	out := &brokerv1.ReachResponse{}
	for _, m := range req.GetModels() {
		out.Models = append(out.Models, one("model-"+m))
	}
	for _, t := range req.GetTools() {
		out.Tools = append(out.Tools, one(t.GetDestination()))
	}
	for _, name := range req.GetEgress() {
		r := one(name)
		r.Protocol, r.Url, r.Verbs = "go", "https://"+name+".example", "GET and HEAD"
		out.Egress = append(out.Egress, r)
	}
	return out, nil
}

// Bar a destination: no path leads there.
func (b *Broker) Bar(destination string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.barred == nil {
		b.barred = map[string]bool{}
	}
	b.barred[destination] = true
}

// Usage tells what slices drew.
func (b *Broker) Usage(_ context.Context, ids ...protocol.SliceID) (*brokerv1.UsageResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, unreachable()
	}
	resp := &brokerv1.UsageResponse{BootNonce: b.boot, KnownBoots: slices.Clone(b.known)}
	for _, id := range ids {
		u := b.used[id.String()]
		resp.Slices = append(resp.Slices, &brokerv1.SliceUsage{
			SliceId: id.String(), DrawnMicroUsd: b.drawn[id.String()], LargestMicroUsd: b.largest[id.String()],
			ReservedMicroUsd: callCost * int64(u.open), InputTokens: u.input, OutputTokens: u.output, Calls: u.calls + int64(u.open), OpenFlows: u.open})
	}
	return resp, nil
}

// CloseSlices tells what they drew: nothing more is drawn here by a turn that ended.
func (b *Broker) CloseSlices(ctx context.Context, ids ...protocol.SliceID) (*brokerv1.UsageResponse, error) {
	return b.Usage(ctx, ids...)
}

// Probe presents a capability as a request would.
func (b *Broker) Probe(_ context.Context, token string, _ protocol.GrantID) (*brokerv1.ProbeResponse, error) {
	if _, err := b.admit(token, time.Now()); err != nil {
		return &brokerv1.ProbeResponse{Code: string(protocol.CodeOf(err))}, nil
	}
	return &brokerv1.ProbeResponse{Admitted: true}, nil
}

package sim

import (
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/budget"
	"bivouac/server/broker/calllog"
	"bivouac/server/broker/feed"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/witness"
	"bivouac/server/capability"
	"bivouac/server/ledger"
)

const (
	pool      = "default"
	feedLimit = 2 * time.Second        // older: nothing new is admitted
	feedBeat  = 300 * time.Millisecond // of the server's feed
)

// broker is the real call log, ledger and feed behind the order of checks of the
// real broker. The call log survives a crash, slices and feed do not.
type broker struct {
	party
	calls  *calllog.Log
	ledger *budget.Ledger
	feed   *feed.Feed
	nonce  string
	disk   *disk
	grants map[protocol.GrantID]bool // false: revoked. They are durable
	heads  *witness.Witness          // of ledgers; durable, as on a disk
	from   int                       // the server whose feed is followed
	stream bool                      // the feed's stream stands
	cursor int64                     // newest floor that came on it
}

func newBroker(s *Sim) *broker {
	b := &broker{party: party{s: s, name: "broker"}, disk: s.newDisk(), grants: map[protocol.GrantID]bool{}}
	b.heads, _ = witness.Open("", slog.New(slog.DiscardHandler)) // no file, no error
	b.boot, b.die = b.begin, b.end
	return b
}

func (b *broker) begin() {
	var err error
	if b.calls, err = calllog.Open(calllog.Config{Path: filepath.Join(b.s.dir, "calls.log")}); err != nil {
		b.s.violate("the call log does not open: %v", err)
		return
	}
	b.nonce = "boot-" + strconv.Itoa(b.life)
	b.ledger = budget.New(b.nonce, b.s.now)
	b.feed = feed.New(b.s.trust.root.Public(), b.s.now, slog.New(slog.DiscardHandler))
	b.stream = false
	b.follow()
}

func (b *broker) end() {
	if err := b.calls.Close(); err != nil {
		b.s.violate("the call log does not close: %v", err)
	}
}

// follow takes a reading of a server's feed every beat; a reading that does not
// come makes the feed older, and a broken stream begins anew, at the next server.
func (b *broker) follow() {
	b.after(feedBeat, "", b.follow)
	h := b.s.hosts[b.from%len(b.s.hosts)]
	if !h.up || h.thaw > b.s.now() || !h.feed.up() || !h.base.up() || !b.s.healed && b.s.chance(h.feed.fault.drop) {
		if b.stream || b.s.chance(0.3) {
			b.from++
		}
		b.stream = false
		return
	}
	if !b.stream {
		b.cursor = b.feed.Begin()
	}
	m := b.s.reading(b.cursor, !b.stream)
	b.stream = true
	b.cursor = m.Cursor
	if _, err := b.feed.Apply(m); err != nil {
		b.stream = false
	}
}

// admit is every check of a request but its subject. INV-13, INV-16.
func (b *broker) admit(peer, token string) (c capability.Claims, err error) {
	if err := b.feed.Check(feedLimit); err != nil {
		return c, err
	}
	now, _ := b.feed.Now()
	if c, err = capability.Verify(token, b.feed.Key, capability.Expect{Audience: pool, Presenter: peer, Now: now}); err != nil {
		return c, err
	}
	if !c.Deadline.IsZero() && !now.Before(c.Deadline) {
		return c, protocol.Errorf(protocol.CodeDeadlineExceeded, "the turn's time is over")
	}
	turn := int64(c.Fence)
	if c.Attempt != "" {
		turn = math.MaxInt64 - 1
	}
	for _, f := range []struct {
		kind  brokerv1.FloorKind
		id    string
		value int64
		code  protocol.Code
	}{
		{brokerv1.FloorKind_FLOOR_KIND_GRANT, c.Grant.String(), 0, protocol.CodePermissionDenied},
		{brokerv1.FloorKind_FLOOR_KIND_RUNNER, c.Presenter, 0, protocol.CodePermissionDenied},
		{brokerv1.FloorKind_FLOOR_KIND_PRINCIPAL, c.Principal.String(), 0, protocol.CodePermissionDenied},
		{brokerv1.FloorKind_FLOOR_KIND_INSTANCE, c.Instance.String(), c.Generation, protocol.CodePermissionDenied},
		{brokerv1.FloorKind_FLOOR_KIND_SESSION, c.Session.String(), 0, protocol.CodePermissionDenied},
		{brokerv1.FloorKind_FLOOR_KIND_TURN, c.Turn.String(), turn, protocol.CodeStaleFence},
		{brokerv1.FloorKind_FLOOR_KIND_ATTEMPT, c.Attempt.String(), int64(c.Fence), protocol.CodeStaleFence},
	} {
		if f.id != "" && b.feed.Below(f.kind, f.id, f.value) {
			return c, protocol.Errorf(f.code, "the capability is below a floor of its %s", f.kind)
		}
	}
	if alive, known := b.grants[c.Grant]; c.Grant != "" && !alive {
		return c, protocol.Errorf(protocol.CodePermissionDenied, "the grant %s was revoked, or is not known: %t", c.Grant, known)
	}
	b.s.admitted(c)
	return c, nil
}

func (b *broker) describe(answer func(*brokerv1.DescribeResponse, error)) {
	answer(&brokerv1.DescribeResponse{BrokerId: "broker", Pool: pool, BootNonce: b.nonce, CapabilityVersion: protocol.Current(),
		Models: []*brokerv1.ModelRoute{{Name: "scripted", DataBoundaries: []string{"personal", "internal"}, Priced: true}}}, nil)
}

// callModel reserves, asks the model and settles. INV-19.
func (b *broker) callModel(peer string, req *brokerv1.CallModelRequest, reply func(*runtimev1.ModelDone, error)) {
	c, err := b.admit(peer, req.Capability)
	if err == nil && !slices.Contains(c.Models, req.Request.Model) {
		err = protocol.Errorf(protocol.CodePermissionDenied, "the capability does not name the route %q", req.Request.Model)
	}
	var hold *budget.Hold
	if err == nil {
		hold, err = b.ledger.Reserve(budget.Slice{ID: c.Slice, Boot: c.SliceBoot, Ceiling: c.SliceCeiling}, modelMost)
	}
	if err != nil {
		b.s.note("broker refuses model %s: %v", req.CallId, err)
		reply(nil, err)
		return
	}
	b.after(b.s.between(time.Millisecond, 800*time.Millisecond), "model answers "+req.CallId, func() {
		if err := b.s.modelFailure(); err != nil {
			hold.Settle(0, budget.Tokens{})
			reply(nil, err)
			return
		}
		done := answer(req.Request)
		hold.Settle(modelCost, budget.Tokens{Input: 7, Output: 3})
		b.s.drawn[c.Turn] += modelCost
		if b.reach(fault.BrokerModelStreaming) {
			reply(done, nil)
		}
	})
}

// invoke checks, logs durably, sends, logs the answer and gives it. INV-4.
func (b *broker) invoke(peer string, req *brokerv1.InvokeRequest, reply func(*brokerv1.InvokeResponse, error)) {
	first, err := b.mayInvoke(peer, req)
	if err != nil {
		b.s.note("broker refuses %s: %v", req.ActionId, err)
		reply(nil, err)
		return
	}
	if !b.reach(fault.BrokerCallLogged) {
		return
	}
	id := protocol.ActionID(req.ActionId)
	b.after(b.s.between(0, 20*time.Millisecond), "broker sends "+req.ActionId, func() {
		if b.s.upstreamRefuses() {
			reply(nil, b.notSent(id, first))
			return
		}
		b.s.world.request(req, func(resp *brokerv1.InvokeResponse, err error) {
			b.answered(id, resp, err, reply)
		})
	})
}

func (b *broker) mayInvoke(peer string, req *brokerv1.InvokeRequest) (first bool, err error) {
	c, err := b.admit(peer, req.Capability)
	if err != nil {
		return false, err
	}
	if c.Action.String() != req.ActionId || c.ArgsDigest != canonical.Digest([]byte(req.Arguments)) ||
		!slices.Contains(c.Tools, req.Tool.Ref) || !slices.Contains(c.Destinations, req.Tool.Destination) {
		return false, protocol.Errorf(protocol.CodePermissionDenied, "the capability is for another call")
	}
	if b.disk.fails() {
		return false, protocol.Errorf(protocol.CodeUnavailable, "the call log cannot be written: no space is left, and nothing is sent")
	}
	return b.calls.Begin(calllog.Call{Action: c.Action, ArgsDigest: c.ArgsDigest, Key: req.IdempotencyKey, Repeatable: repeatable(req.Tool)})
}

// repeatable says that the upstream itself makes a repetition harmless.
func repeatable(t *brokerv1.HttpTool) bool { return t.Method == "GET" || t.IdempotencyHeader != "" }

// notSent takes the log's entry back only when nothing left, now and before.
func (b *broker) notSent(id protocol.ActionID, first bool) error {
	if !first {
		return protocol.Errorf(protocol.CodeOutcomeUnknown, "action %s was sent before and could not be repeated", id)
	}
	if err := b.calls.Unsent(id); err != nil {
		return err
	}
	return protocol.Errorf(protocol.CodeUnavailable, "the upstream cannot be reached: no connection was made")
}

func (b *broker) answered(id protocol.ActionID, resp *brokerv1.InvokeResponse, err error, reply func(*brokerv1.InvokeResponse, error)) {
	life := b.life
	b.after(b.s.between(0, 20*time.Millisecond), "upstream answers "+id.String(), func() {
		if err != nil {
			reply(nil, err)
			return
		}
		if b.life != life || !b.reach(fault.BrokerCallAnswered) {
			return
		}
		if err := b.calls.Answer(id, calllog.Outcome{Status: int(resp.HttpStatus), BodyDigest: resp.BodyDigest, Failed: resp.Failed}); err != nil {
			b.s.violate("an answer is not logged: %v", err)
		}
		reply(resp, nil)
	})
}

var callStates = map[calllog.State]brokerv1.CallState{
	calllog.Barred: brokerv1.CallState_CALL_STATE_ABSENT, calllog.Sent: brokerv1.CallState_CALL_STATE_SENT,
	calllog.Answered: brokerv1.CallState_CALL_STATE_ANSWERED,
}

func (b *broker) lookup(id protocol.ActionID, reply func(*brokerv1.LookupActionResponse, error)) {
	e, err := b.calls.Lookup(id)
	if err != nil {
		reply(nil, err)
		return
	}
	b.s.note("broker knows of %s: %s", id, string(e.State))
	reply(&brokerv1.LookupActionResponse{State: callStates[e.State], HttpStatus: int32(e.Status), BodyDigest: e.BodyDigest,
		LogSinceUs: b.calls.Since().UnixMicro()}, nil)
}

// usage answers what reading or closing the slices says of them.
func (b *broker) usage(used []budget.Usage, reply func(*brokerv1.UsageResponse, error)) {
	resp := &brokerv1.UsageResponse{BootNonce: b.nonce}
	for _, u := range used {
		resp.Slices = append(resp.Slices, &brokerv1.SliceUsage{SliceId: u.Slice.String(), DrawnMicroUsd: u.Drawn, ReservedMicroUsd: u.Reserved,
			InputTokens: u.Input, OutputTokens: u.Output, Calls: u.Calls, OpenFlows: int32(u.Open)})
	}
	reply(resp, nil)
}

// lastHead of a ledger, from which a server has to prove that it goes on.
func (b *broker) lastHead(t protocol.TenantID) *brokerv1.LastHeadResponse {
	h := b.heads.Last(t)
	return &brokerv1.LastHeadResponse{Size: h.Size, Root: h.Root[:], Epoch: int64(h.Epoch)}
}

// signHead takes a head that follows the last one. No fault of the simulation
// brings an old database back, so whatever breaks off is the servers' doing. INV-8.
func (b *broker) signHead(req *brokerv1.SignHeadRequest) error {
	head, err := ledger.ReadHead(req.GetHead())
	if err != nil {
		b.s.violate("the head of a ledger cannot be read: %v", err)
		return err
	}
	var proof []ledger.Hash
	for _, h := range req.GetProof() {
		proof = append(proof, ledger.Hash(h))
	}
	err = b.heads.Take(head, req.GetAfterSize(), proof)
	if err != nil && protocol.CodeOf(err) != protocol.CodeConflict {
		b.s.violate("%v", err)
	}
	return err
}

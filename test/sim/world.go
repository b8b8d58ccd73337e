package sim

import (
	"context"
	"encoding/json"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/session"
	"bivouac/server/store"
)

// world is what lies outside: upstreams behind the broker and files on people's
// machines. It counts what really happened, and no process of ours can change
// that.
type world struct {
	s       *Sim
	effects []effect
	byKey   map[string]*brokerv1.InvokeResponse // an upstream's own memory of keys
	files   map[protocol.RunnerID]map[string]string
}

// effect is one thing that happened.
type effect struct {
	at     time.Duration
	action protocol.ActionID
	tool   string
}

func newWorld(s *Sim) *world {
	return &world{s: s, byKey: map[string]*brokerv1.InvokeResponse{}, files: map[protocol.RunnerID]map[string]string{}}
}

// happened reports an effect of an action.
func (w *world) happened(id protocol.ActionID) bool {
	for _, e := range w.effects {
		if e.action == id {
			return true
		}
	}
	return false
}

// request is one http request on its way to an upstream: it arrives whatever
// becomes of the broker.
func (w *world) request(req *brokerv1.InvokeRequest, reply func(*brokerv1.InvokeResponse, error)) {
	s := w.s
	name := req.Tool.Ref + " of " + req.ActionId
	s.after(s.between(time.Millisecond, 400*time.Millisecond), name+" arrives", func() {
		if !s.healed && s.chance(s.plan.failing) {
			s.fault(faultUpstream)
			reply(response(503, "busy"), nil)
			return
		}
		resp := w.serve(req)
		if !s.healed && s.chance(s.plan.broken) {
			s.fault(faultUpstream)
			s.note("the answer of %s is lost", name)
			if s.chance(0.5) { // in front of it stands somebody who says so
				reply(response(504, "no answer in time"), nil)
				return
			}
			reply(nil, protocol.Errorf(protocol.CodeOutcomeUnknown, "the upstream broke off before its answer was whole"))
			return
		}
		reply(resp, nil)
	})
}

// serve has the effect, once for each idempotency key.
func (w *world) serve(req *brokerv1.InvokeRequest) *brokerv1.InvokeResponse {
	keyed := req.Tool.IdempotencyHeader != ""
	if old := w.byKey[req.IdempotencyKey]; keyed && old != nil {
		return old
	}
	resp := response(200, "ok")
	if keyed {
		w.byKey[req.IdempotencyKey] = resp
	}
	w.record(protocol.ActionID(req.ActionId), req.Tool.Ref, canonical.Digest([]byte(req.Arguments)), req.Tool.Method != "GET")
	return resp
}

func response(status int32, body string) *brokerv1.InvokeResponse {
	return &brokerv1.InvokeResponse{HttpStatus: status, ContentType: "text/plain", Body: []byte(body),
		BodyBytes: int64(len(body)), BodyDigest: canonical.Digest([]byte(body))}
}

// upstreamRefuses says that no connection is made.
func (s *Sim) upstreamRefuses() bool { return !s.healed && s.chance(s.plan.refused) }

// record counts what happens, in the moment in which it happens, and holds it
// against what is committed then. INV-4, INV-5.
func (w *world) record(id protocol.ActionID, tool, digest string, changes bool) {
	s := w.s
	var a session.Action
	err := s.store.View(context.Background(), store.AsLoop("world"), func(tx *store.Tx) (err error) {
		a, err = tx.Action(id)
		return err
	})
	switch {
	case err != nil:
		s.violate("INV-4: %s happens and its action %s has no committed intent: %v", tool, id, err)
	case a.DispatchedAt.IsZero():
		s.violate("INV-4: %s happens and action %s is %s: it was never dispatched", tool, id, a.State)
	case a.Tool != tool || a.ArgumentsDigest != digest:
		s.violate("INV-4: %s happens with arguments that action %s did not intend", tool, id)
	case changes && w.happened(id):
		s.violate("INV-5: %s of action %s happens a second time", tool, id)
	case changes && a.State.Terminal() && a.State != session.ActionUnknown:
		s.violate("INV-5: %s of action %s happens, and the action was said to be %s", tool, id, a.State)
	}
	if changes {
		s.heldBack(a)
		w.effects = append(w.effects, effect{s.now(), id, tool})
	}
	s.note("%s happens for %s", tool, id)
	s.touched = true
}

// do carries one device action out on a machine's files, as edge/device does.
func (w *world) do(r protocol.RunnerID, d *runnerv1.DeviceWork) *runnerv1.Result {
	files := w.files[r]
	var args struct{ Path, Content string }
	if err := json.Unmarshal([]byte(d.Arguments), &args); err != nil {
		return failed(protocol.CodeInvalidArgument, err.Error())
	}
	content, exists := files[args.Path]
	switch d.Action {
	case "files.read":
		if !exists {
			return failed(protocol.CodeNotFound, "no such file")
		}
		return succeeded(map[string]any{"content": content})
	case "files.digest":
		return succeeded(map[string]any{"exists": exists, "digest": digestOf(content, exists)})
	case "files.write":
		if digestOf(content, exists) != d.PreImageDigest {
			return failed(protocol.CodeConflict, "the file is not the one that was approved")
		}
		files[args.Path] = args.Content
		w.record(protocol.ActionID(d.ActionId), d.Action, canonical.Digest([]byte(d.Arguments)), true)
		return succeeded(map[string]any{"digest": digestOf(args.Content, true)})
	}
	return &runnerv1.Result{Status: "denied", Code: string(protocol.CodePolicyDenied), Message: "not an action of this machine"}
}

// inspect finds out what became of an interrupted action, without repeating it.
func (w *world) inspect(r protocol.RunnerID, d *runnerv1.DeviceWork) *runnerv1.Result {
	if d.Action != "files.write" {
		return failed(protocol.CodeUnavailable, "interrupted by a restart; it changed nothing")
	}
	var args struct{ Path, Content string }
	if err := json.Unmarshal([]byte(d.Arguments), &args); err != nil {
		return failed(protocol.CodeInvalidArgument, err.Error())
	}
	content, exists := w.files[r][args.Path]
	switch digestOf(content, exists) {
	case digestOf(args.Content, true):
		return succeeded(map[string]any{"digest": digestOf(content, true)})
	case d.PreImageDigest:
		return failed(protocol.CodeUnavailable, "interrupted by a restart before the file was changed")
	}
	return &runnerv1.Result{Status: "unknown", Code: string(protocol.CodeOutcomeUnknown), Message: "the file is neither the old nor the new one"}
}

func digestOf(content string, exists bool) string {
	if !exists {
		return ""
	}
	return canonical.Digest([]byte(content))
}

func failed(code protocol.Code, message string) *runnerv1.Result {
	return &runnerv1.Result{Status: "failed", Code: string(code), Message: message}
}

func succeeded(output map[string]any) *runnerv1.Result {
	b, err := canonical.Marshal(output)
	if err != nil {
		return failed(protocol.CodeInternal, err.Error())
	}
	return &runnerv1.Result{Status: "succeeded", Output: string(b)}
}

// reads reports an action that changes nothing.
func reads(a session.Action) bool { return a.Effect == runtimev1.Effect_EFFECT_READ }

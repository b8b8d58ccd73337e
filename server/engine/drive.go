package engine

import (
	"strconv"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/loop"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/session"
)

// feed gives the loop of a service-placed turn what happened and carries out
// the one command that it answers, all in this transaction. So the state of the
// loop, the intent of an action and the events that say so commit together.
// INV-4.
func (w *turnTx) feed(in loop.Input) error {
	before, err := w.state()
	if err != nil {
		return err
	}
	before.Settled = settled(w.turn)
	after, commands := loop.Step(before, in)
	w.loop, w.dirty = after, true
	w.used(0, 0, 0, int64(after.ModelCalls))
	w.spend(after.Usage)
	if err := w.recordAdded(before, after); err != nil {
		return err
	}
	for _, c := range commands {
		switch c := c.(type) {
		case loop.CallModel:
			err = w.callModel(c)
		case loop.CallTool:
			err = w.callTool(c.Call, c.Tool)
		case loop.Finish:
			err = w.finish(c.Outcome)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// recordAdded turns what a step appended to the conversation into events.
func (w *turnTx) recordAdded(before, after *runtimev1.LoopState) error {
	for _, m := range loop.Added(before, after) {
		switch m.Role {
		case runtimev1.Role_ROLE_ASSISTANT:
			if err := w.recordAnswer(m, after.ModelCalls, after.Usage); err != nil {
				return err
			}
		case runtimev1.Role_ROLE_TOOL:
			for _, b := range m.Blocks {
				if r := b.GetToolResult(); r != nil {
					if err := w.recordResult(r); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func (w *turnTx) recordAnswer(m *runtimev1.Message, number int32, total *runtimev1.Usage) error {
	payload, err := session.EncodePayload(m)
	if err != nil {
		return err
	}
	data := map[string]string{"number": strconv.Itoa(int(number))}
	if total != nil {
		data["cost_micro_usd_total"] = strconv.FormatInt(total.CostMicroUsd, 10)
	}
	w.event(session.Event{Type: session.ModelAnswered, Data: data, Payload: payload})
	return nil
}

// recordResult notes the one result of a call. The result of the action that is
// being settled carries its id.
func (w *turnTx) recordResult(r *runtimev1.ToolResult) error {
	payload, err := session.EncodePayload(r)
	if err != nil {
		return err
	}
	ev := session.Event{Type: session.ToolFinished, Action: w.settling, Payload: payload, Data: map[string]string{
		session.DataCallID: r.CallId, session.DataAlias: w.aliasOf(r.CallId),
		"status": statusWord(r.Status), "code": r.Code,
	}}
	if w.settling == "" {
		w.refusedTool(loop.WhyRefused(r))
	}
	w.settling = ""
	w.event(ev)
	return nil
}

// aliasOf finds the alias under which a call was made, newest first: call ids
// are unique within one answer only.
func (w *turnTx) aliasOf(callID string) string {
	if w.loop == nil {
		return ""
	}
	for i := len(w.loop.Messages) - 1; i >= 0; i-- {
		for _, b := range w.loop.Messages[i].Blocks {
			if c := b.GetToolCall(); c.GetId() == callID && c != nil {
				return c.Alias
			}
		}
	}
	return ""
}

// callModel makes the next model call the one in flight; the model tick starts
// it once this is durable.
func (w *turnTx) callModel(c loop.CallModel) error {
	if ev, ok := backToModel[w.turn.State]; ok {
		if err := w.step(ev); err != nil {
			return err
		}
	}
	call := newID[protocol.CallKind](w.e, w.tx.Now)
	w.turn.ModelCall, w.dirty = call, true
	data := map[string]string{"call": call.String(), "model": c.Request.Model, "number": strconv.Itoa(int(w.loop.ModelCalls))}
	if w.loop.ModelRetries > 0 {
		data["retry"] = strconv.Itoa(int(w.loop.ModelRetries))
	}
	w.event(session.Event{Type: session.ModelCalled, Data: data})
	id, now := w.turn.ID, w.tx.Now
	if w.turn.Owner != w.e.cfg.Replica { // its runner's report came here
		w.tx.Wake(callsOf(w.turn.Owner))
		return nil
	}
	w.afterCommit(func() {
		if c.After > 0 {
			w.e.pauses.set(modelOp(call), now.Add(c.After))
		}
		w.e.due.add(id, call)
	})
	return nil
}

// backToModel is how each state returns to the model.
var backToModel = map[session.TurnState]session.TurnEvent{
	session.Received:              session.TurnRun,
	session.WaitingAction:         session.TurnRefuse,
	session.WaitingApproval:       session.TurnRefuse,
	session.RunningAction:         session.TurnSettle,
	session.WaitingReconciliation: session.TurnReconcile,
}

// finish ends the turn as the loop says.
func (w *turnTx) finish(o *runtimev1.Outcome) error {
	w.spend(o.GetUsage())
	switch o.GetKind() {
	case runtimev1.OutcomeKind_OUTCOME_KIND_COMPLETED:
		w.turn.Answer = o.Text
		return w.end(session.TurnComplete, "", o.Message)
	case runtimev1.OutcomeKind_OUTCOME_KIND_CANCELLED:
		return w.endCancelled(o.Reason, o.Message)
	case runtimev1.OutcomeKind_OUTCOME_KIND_UNKNOWN:
		return w.endUnknown(o.Message)
	}
	return w.endFailed(o.GetReason(), o.GetMessage())
}

// statusWord of a result for events and logs.
func statusWord(s runtimev1.ResultStatus) string {
	switch s {
	case runtimev1.ResultStatus_RESULT_STATUS_OK:
		return "ok"
	case runtimev1.ResultStatus_RESULT_STATUS_FAILED:
		return "failed"
	case runtimev1.ResultStatus_RESULT_STATUS_DENIED:
		return "denied"
	case runtimev1.ResultStatus_RESULT_STATUS_SKIPPED:
		return "skipped"
	}
	return "unknown"
}

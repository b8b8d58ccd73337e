package engine

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/execution"
	"bivouac/server/planted"
	"bivouac/server/session"
	"bivouac/server/store"
)

// Report accepts journal records once, in order, under the fence. Records under
// another fence, or of an attempt that ended, are kept as evidence and change
// nothing. INV-3.
func (e *Engine) Report(ctx context.Context, c store.Caller, req *runnerv1.ReportRequest) (*runnerv1.ReportResponse, error) {
	id, err := protocol.ParseID[protocol.AttemptKind](req.AttemptId)
	if err != nil {
		return nil, err
	}
	if err := e.visible(ctx, c, id); err != nil {
		return nil, err
	}
	for _, r := range req.Records {
		if r.GetResult() != nil {
			fault.Here(fault.ServerOutcomeReceived)
		}
	}
	var resp *runnerv1.ReportResponse
	err = e.onAttempt(ctx, "report", id, func(w *turnTx, a execution.Attempt) (err error) {
		anyFence := planted.Chosen == planted.Fence && a.State.Held()
		if a.Runner != c.Runner() || a.CheckFence(protocol.Fence(req.Fence)) != nil && !anyFence {
			resp, err = w.keepEvidence(a, req)
		} else {
			resp, err = w.acceptRecords(a, req.Records)
		}
		return err
	})
	if protocol.CodeOf(err) == protocol.CodeOutcomeUnknown {
		e.leases.doubt(id)
	}
	if err != nil {
		return nil, err
	}
	e.leases.accept(id, resp.AcceptedSeq)
	return resp, nil
}

// acceptRecords takes the records that follow on what was accepted. Known ones are
// skipped; after a gap nothing is taken, and the answer says from where to send
// again.
func (w *turnTx) acceptRecords(a execution.Attempt, records []*runnerv1.Record) (*runnerv1.ReportResponse, error) {
	news, err := following(a, records)
	if err != nil {
		return nil, err
	}
	if err := w.tx.PutRecords(a.ID, a.Fence, false, news.stored); err != nil {
		return nil, err
	}
	saved := a
	for _, r := range news.records {
		a.AcceptedSeq = r.Seq
		if a, err = w.acceptRecord(a, r); err != nil {
			return nil, err
		}
		if a.State == saved.State {
			continue
		}
		if err := w.tx.SaveAttempt(a, saved.State, saved.Fence); err != nil {
			return nil, err
		}
		saved = a
		if a.State.Terminal() {
			return &runnerv1.ReportResponse{AcceptedSeq: a.AcceptedSeq}, w.resultAccepted(a, r.GetResult())
		}
	}
	if a.AcceptedSeq != saved.AcceptedSeq {
		err = w.tx.SaveAttempt(a, saved.State, saved.Fence)
	}
	return &runnerv1.ReportResponse{AcceptedSeq: a.AcceptedSeq}, err
}

// batch is what one report adds.
type batch struct {
	records []*runnerv1.Record
	stored  []store.Record
}

// following picks the records that come next without a gap, up to a result.
func following(a execution.Attempt, records []*runnerv1.Record) (batch, error) {
	var b batch
	next := a.AcceptedSeq + 1
	for _, r := range records {
		if r.Seq < next {
			continue
		}
		if r.Seq > next {
			break
		}
		kept, err := stored(r, a.Fence)
		if err != nil {
			return b, err
		}
		b.records, b.stored, next = append(b.records, r), append(b.stored, kept), next+1
		if r.GetResult() != nil {
			break
		}
	}
	return b, nil
}

func stored(r *runnerv1.Record, f protocol.Fence) (store.Record, error) {
	b, err := deterministic.Marshal(r)
	return store.Record{Seq: r.Seq, At: time.UnixMicro(r.AtUs).UTC(), Body: b, Fence: f}, err
}

// acceptRecord makes what one record says true of its attempt and turn.
func (w *turnTx) acceptRecord(a execution.Attempt, r *runnerv1.Record) (execution.Attempt, error) {
	switch k := r.Kind.(type) {
	case *runnerv1.Record_Started:
		w.event(session.Event{Type: session.AttemptStarted, Attempt: a.ID, Data: withAllocation(a, map[string]string{
			"runner": a.Runner.String(), "boundary": k.Started.GetBoundary(), "limits": k.Started.GetLimits(), "narrowed": strings.Join(k.Started.GetNarrowed(), ", ")})})
		return a.Step(execution.AttemptBegin, w.tx.Now)
	case *runnerv1.Record_LoopEvent:
		return a, w.loopEvent(a, k.LoopEvent)
	case *runnerv1.Record_ToolRequested:
		return a, w.toolRequested(a, k.ToolRequested)
	case *runnerv1.Record_Checkpoint:
		return a, w.checkpoint(a, k.Checkpoint)
	case *runnerv1.Record_SandboxMoved:
		return a, w.sandboxMoved(a, r)
	case *runnerv1.Record_OwnerAsked:
		return a, w.ownerAsked(a, r)
	case *runnerv1.Record_OwnerDecided:
		return a, w.ownerDecided(a, r)
	case *runnerv1.Record_Result:
		if err := w.ownerEnded(a, r); err != nil {
			return a, err
		}
		return a.End(resultEvent(k.Result), k.Result.GetCode(), k.Result.GetMessage(), w.tx.Now)
	}
	return a, nil // an effect's intent is evidence only
}

// resultEvent maps a result to the end of its attempt. A worker or supervisor
// that died under its work is a known outcome: nothing runs any more.
func resultEvent(r *runnerv1.Result) execution.AttemptEvent {
	if r.GetStatus() == protocol.ResultFailed && r.GetCode() == protocol.ResultInterrupted {
		return execution.AttemptInterrupt
	}
	switch r.GetStatus() {
	case protocol.ResultParked:
		return execution.AttemptInterrupt
	case protocol.ResultSucceeded:
		return execution.AttemptSucceed
	case protocol.ResultFailed, protocol.ResultDenied:
		return execution.AttemptFail
	case protocol.ResultCancelled:
		return execution.AttemptCancel
	}
	return execution.AttemptGiveUp
}

// resultAccepted gives the accepted result to what the attempt worked for.
func (w *turnTx) resultAccepted(a execution.Attempt, r *runnerv1.Result) error {
	if err := w.attemptEnded(a); err != nil {
		return err
	}
	switch {
	case a.SubjectKind == execution.SubjectTurn && r.GetStatus() == protocol.ResultParked:
		return w.parked(a, r)
	case a.SubjectKind == execution.SubjectTurn && a.State == execution.AttemptInterrupted:
		return w.goOn(a, r.GetMessage())
	case a.SubjectKind == execution.SubjectTurn:
		return w.turnResult(a, r)
	}
	action, err := w.tx.ActionOfAttempt(a.ID)
	if err != nil {
		return err
	}
	if over, err := w.ownerRefusedAction(a, action, r); over || err != nil {
		return err
	}
	return w.settleDevice(action, r)
}

// keepEvidence keeps late records. Those of an action of unknown outcome are
// shown in the unknown inbox. INV-3, INV-5.
func (w *turnTx) keepEvidence(a execution.Attempt, req *runnerv1.ReportRequest) (*runnerv1.ReportResponse, error) {
	resp := &runnerv1.ReportResponse{EvidenceOnly: true}
	var kept []store.Record
	var result *runnerv1.Result
	for _, r := range req.Records {
		s, err := stored(r, protocol.Fence(req.Fence))
		if err != nil {
			return nil, err
		}
		kept = append(kept, s)
		resp.AcceptedSeq = max(resp.AcceptedSeq, r.Seq)
		if r.GetResult() != nil && r.Seq > a.AcceptedSeq {
			result = r.GetResult()
		}
	}
	known, err := w.tx.Records(a.ID)
	if err != nil {
		return nil, err
	}
	if err := w.tx.PutRecords(a.ID, protocol.Fence(req.Fence), true, kept); err != nil {
		return nil, err
	}
	if result == nil || hasResult(known) {
		return resp, nil
	}
	w.event(session.Event{Type: session.LateResult, Attempt: a.ID, Data: map[string]string{
		"status": result.Status, "code": result.Code, "runner": a.Runner.String(), "fence": protocol.Fence(req.Fence).String()}})
	if planted.Chosen == planted.Exit && a.State.Terminal() {
		a.Reason, a.Message = result.Code, result.Message
		return resp, w.tx.SaveAttempt(a, a.State, a.Fence)
	}
	if a.SubjectKind != execution.SubjectAction {
		return resp, nil
	}
	action, err := w.tx.ActionOfAttempt(a.ID)
	if err != nil || action.State != session.ActionUnknown {
		return resp, err
	}
	action.Evidence = joinEvidence(action.Evidence, "later the runner reported "+result.Status)
	return resp, w.tx.SaveAction(action, action.State, action.Fence)
}

// hasResult reports records that hold a result already.
func hasResult(records []store.Record) bool {
	for _, r := range records {
		m := &runnerv1.Record{}
		if proto.Unmarshal(r.Body, m) == nil && m.GetResult() != nil {
			return true
		}
	}
	return false
}

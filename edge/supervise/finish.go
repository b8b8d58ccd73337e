package supervise

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
)

// patchTimeout bounds the computing of one patch.
const patchTimeout = 5 * time.Minute

// statusOf maps how a loop ended to how its attempt ended.
var statusOf = map[runtimev1.OutcomeKind]string{
	runtimev1.OutcomeKind_OUTCOME_KIND_COMPLETED: protocol.ResultSucceeded,
	runtimev1.OutcomeKind_OUTCOME_KIND_FAILED:    protocol.ResultFailed,
	runtimev1.OutcomeKind_OUTCOME_KIND_CANCELLED: protocol.ResultCancelled,
	runtimev1.OutcomeKind_OUTCOME_KIND_UNKNOWN:   protocol.ResultUnknown,
}

// finishedResult is the result of a loop that came to its end. The patch is
// computed when no process is left in the workspace. What it cannot carry, such as
// a link out of the workspace, is left out, and the message of a result that
// succeeded names it. A patch beyond all bounds fails the turn with the reason.
func (a *attempt) finishedResult(ctx context.Context, f *runtimev1.FinishRequest) *runnerv1.Result {
	r := &runnerv1.Result{Status: statusOf[f.GetOutcome().GetKind()], Code: f.GetOutcome().GetReason(), Message: f.GetOutcome().GetMessage()}
	if r.Status == "" {
		r.Status = protocol.ResultFailed
	}
	digest, err := a.computePatch(ctx, a.repo.Patch)
	if err != nil && r.Status == protocol.ResultSucceeded {
		a.cfg.Log.Warn("the turn's change cannot be taken", "error", err)
		failed := &runnerv1.Result{Status: protocol.ResultFailed, Code: string(protocol.CodeOf(err)), Message: "The turn's change cannot be taken: " + messageOf(err)}
		failed.State, _ = deterministic.Marshal(f.GetState()) // without a transcript the reason still counts
		return failed
	}
	r.PatchDigest = digest
	if r.Status == protocol.ResultSucceeded {
		r.Message = leftOut(a.repo.LeftOut()) // what the worker said is its outcome's
	}
	if r.Outcome, err = deterministic.Marshal(f.GetOutcome()); err == nil && f.GetState() != nil {
		r.State, err = deterministic.Marshal(f.GetState())
	}
	if err != nil {
		return &runnerv1.Result{Status: protocol.ResultFailed, Code: string(protocol.CodeInternal), Message: "The worker's outcome cannot be encoded."}
	}
	return r
}

// park ends the attempt while a person decides: nothing of it runs, and it holds
// nothing, until another goes on from state (INV-7).
func (a *attempt) park(state *runtimev1.LoopState) {
	a.progress.Lock()
	a.parked = state
	a.progress.Unlock()
	a.end(errParked)
}

// parkedResult is the cursor: the transcript with the call in flight, and the
// files as they are, with no process left in the workspace.
func (a *attempt) parkedResult(ctx context.Context) *runnerv1.Result {
	a.progress.Lock()
	state := a.parked
	a.progress.Unlock()
	r := &runnerv1.Result{Status: protocol.ResultParked, Code: string(protocol.CodeApprovalRequired), Message: errParked.Message}
	var err error
	if r.PatchDigest, err = a.computePatch(ctx, a.repo.Patch); err == nil {
		r.State, err = deterministic.Marshal(state)
	}
	if err != nil {
		a.cfg.Log.Warn("the attempt cannot be parked", "error", err)
		return &runnerv1.Result{Status: protocol.ResultFailed, Code: string(protocol.CodeOf(err)), Message: "The turn's change cannot be taken: " + messageOf(err)}
	}
	return r
}

// namedLeftOut bounds how many names a message holds.
const namedLeftOut = 10

// leftOut is the sentence about what a patch does not carry; empty for nothing.
func leftOut(names []string) string {
	if len(names) == 0 {
		return ""
	}
	more := ""
	if n := len(names) - namedLeftOut; n > 0 {
		names, more = names[:namedLeftOut], fmt.Sprintf(" and %d more", n)
	}
	return "left out of the patch: " + strings.Join(names, ", ") + more
}

// messageOf is what a person may see of an error.
func messageOf(err error) string {
	var coded *protocol.Error
	if errors.As(err, &coded) {
		return coded.Message
	}
	return "the runner failed inside; its log says why"
}

// computePatch keeps the canonical patch and returns its digest; empty for no change.
func (a *attempt) computePatch(ctx context.Context, compute func(context.Context) ([]byte, bool, error)) (digest string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	patch, empty, err := compute(ctx)
	if err != nil || empty {
		return "", err
	}
	return a.putBlob(patch)
}

// checkpoint keeps transcript and files as a pair: the state that the worker
// gives, and the patch as it is while nothing runs.
func (a *attempt) checkpoint(ctx context.Context, state *runtimev1.LoopState) error {
	a.execs.Lock()
	defer a.execs.Unlock()
	if !a.soiled() {
		return nil
	}
	digest, err := a.computePatch(ctx, a.repo.Checkpoint)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		// The worker may still mend it; what cannot be taken is judged at the end.
		a.cfg.Log.Warn("no checkpoint: the change cannot be taken as it is", "error", err)
		return nil
	}
	b, err := deterministic.Marshal(state)
	if err != nil {
		return err
	}
	record := &runnerv1.Record{Kind: &runnerv1.Record_Checkpoint{Checkpoint: &runnerv1.Checkpoint{State: b, PatchDigest: digest}}}
	if _, err := a.records.append(record, true); err != nil {
		return err
	}
	a.progress.Lock()
	a.dirty = false
	a.progress.Unlock()
	return nil
}

// soil notes that something happened which a checkpoint must keep.
func (a *attempt) soil() {
	a.progress.Lock()
	defer a.progress.Unlock()
	a.dirty = true
}

func (a *attempt) soiled() bool {
	a.progress.Lock()
	defer a.progress.Unlock()
	return a.dirty
}

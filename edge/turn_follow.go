package edge

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"bivouac/edge/link"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/supervise/protocol/supervisev1"
)

// follow brings the supervisor's records to the server as they become durable,
// and tells the supervisor what it may prune. It returns nil once the server has
// the result.
func (d *Daemon) follow(ctx context.Context, t *turn, after int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := t.supervisor.Records(ctx, &supervisev1.RecordsRequest{AfterSeq: after})
	if err != nil {
		return protocol.FromConnect(err)
	}
	defer stream.Close()
	defer t.short.Store(false)
	for stream.Receive() {
		records := stream.Msg().GetRecords()
		if short := stream.Msg().GetShort(); t.short.Swap(short) != short {
			d.wakeRenew.Ring()
		}
		if len(records) == 0 {
			continue
		}
		last := records[len(records)-1]
		t.seq.Store(max(t.seq.Load(), last.GetSeq()))
		if r := last.GetResult(); r != nil {
			t.ended.Store(true)
			d.noteResult(ctx, t, r)
		}
		if err := d.report(ctx, t, records); err != nil {
			return err
		}
		if _, err := call(ctx, t.supervisor.Acknowledge, &supervisev1.AcknowledgeRequest{Seq: last.GetSeq()}); err != nil && last.GetResult() == nil {
			return err
		}
		if last.GetResult() != nil {
			return nil
		}
	}
	if err := stream.Err(); err != nil {
		return protocol.FromConnect(err)
	}
	return protocol.Errorf(protocol.CodeUnavailable, "the supervisor of attempt %s ended its records without a result", t.id)
}

// report sends records until the server has them. Patches that they name go
// first. What the server refuses for good is logged and not sent again.
func (d *Daemon) report(ctx context.Context, t *turn, records []*runnerv1.Record) error {
	backoff := link.Backoff{Base: d.cfg.BackoffBase, Max: 5 * time.Second}
	for {
		c, err := d.line.wait(ctx)
		if err != nil {
			return err
		}
		err = d.reportOnce(ctx, t, c, records)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case isStaleEpoch(err):
			d.line.drop(c, err)
		case transient(err):
			d.problems.note("report", err)
		default:
			d.log.WarnContext(ctx, "the server refuses records of an attempt for good", "attempt", t.id, "error", err)
			return nil
		}
		if !op.Sleep(ctx, backoff.Next()) {
			return context.Cause(ctx)
		}
	}
}

func (d *Daemon) reportOnce(ctx context.Context, t *turn, c *connection, records []*runnerv1.Record) error {
	for _, r := range records {
		for _, digest := range []string{r.GetCheckpoint().GetPatchDigest(), r.GetResult().GetPatchDigest()} {
			if digest == "" || t.put[digest] {
				continue
			}
			err := d.putBlob(ctx, t, digest)
			switch {
			case err == nil:
			case protocol.CodeOf(err) == protocol.CodeStaleFence:
				// The attempt's fence, not the connection's: another replaced it, and what it
				// made is not wanted. Its records still go, as evidence.
				d.cutOff(t.attempt, protocol.Errorf(protocol.CodeStaleFence, "another attempt replaced %s", t.id))
			default:
				return err
			}
			t.put[digest] = true
		}
	}
	res, err := call(ctx, d.client.Report, &runnerv1.ReportRequest{
		AttemptId: t.id.String(), Fence: int64(t.fence), Epoch: c.epoch, Records: records,
	})
	if err != nil {
		return err
	}
	d.problems.note("report", nil)
	if res.GetEvidenceOnly() {
		d.cutOff(t.attempt, protocol.Errorf(protocol.CodeStaleFence, "another attempt replaced %s", t.id))
		return nil
	}
	if last := records[len(records)-1].GetSeq(); res.GetAcceptedSeq() < last {
		return protocol.Errorf(protocol.CodeUnavailable, "the server accepted records of attempt %s up to %d, not %d", t.id, res.GetAcceptedSeq(), last)
	}
	return nil
}

// noteResult tells the owner of a turn that failed here. What failed inside is this
// machine's to mend: it stays in status until a turn goes well, and its reasons are
// taken out of the supervisor's log, which goes with the attempt.
func (d *Daemon) noteResult(ctx context.Context, t *turn, r *runnerv1.Result) {
	switch {
	case r.GetStatus() == protocol.ResultSucceeded:
		d.problems.note("work", nil)
	case r.GetStatus() == protocol.ResultFailed && r.GetCode() == string(protocol.CodeInternal):
		why := strings.Join(t.dir.Errors(), "; ")
		d.log.ErrorContext(ctx, "a turn failed on this machine", "attempt", t.id, "message", r.GetMessage(), "supervisor", why)
		d.problems.note("work", protocol.Errorf(protocol.CodeInternal, "turn attempt %s failed on this machine: %s", t.id, cmp.Or(why, r.GetMessage())))
	case r.GetStatus() == protocol.ResultFailed:
		d.log.WarnContext(ctx, "a turn failed", "attempt", t.id, "code", r.GetCode(), "message", r.GetMessage())
	}
}

// answerFor reports a result for a turn that has no supervisor to do so.
func (d *Daemon) answerFor(ctx context.Context, t *turn, r *runnerv1.Result) error {
	t.ended.Store(true)
	t.quiet.Store(true)
	d.noteResult(ctx, t, r)
	return d.report(ctx, t, []*runnerv1.Record{{
		Seq: t.seq.Load() + 1, AtUs: time.Now().UnixMicro(), Kind: &runnerv1.Record_Result{Result: r},
	}})
}

// finalFor turns an error that no repetition mends into the turn's result.
func finalFor(t *turn, err error) *runnerv1.Result {
	var e *protocol.Error
	switch {
	case !errors.As(err, &e):
		return nil
	case e == t.cut.Load():
		return cancelledResult(e)
	case t.starts >= maxStarts && e.Code == protocol.CodeInternal, !transient(e) && e.Code != protocol.CodeConflict:
		return failedResult(e)
	}
	return nil
}

func failedResult(err error) *runnerv1.Result {
	return &runnerv1.Result{Status: protocol.ResultFailed, Code: string(protocol.CodeOf(err)), Message: err.Error()}
}

func cancelledResult(why *protocol.Error) *runnerv1.Result {
	return &runnerv1.Result{Status: protocol.ResultCancelled, Code: string(why.Code), Message: why.Message}
}

// passLive forwards text of the model while it comes. It is never durable: what
// cannot be sent at once is dropped.
func (d *Daemon) passLive(ctx context.Context, t *turn) {
	backoff := link.Backoff{Base: 100 * time.Millisecond, Max: 5 * time.Second}
	for !t.ended.Load() && ctx.Err() == nil {
		stream, err := t.supervisor.Live(ctx, &supervisev1.LiveRequest{})
		if err == nil {
			for stream.Receive() {
				backoff.Reset()
				if d.line.get() == nil {
					continue
				}
				_, _ = call(ctx, d.client.Live, &runnerv1.LiveRequest{AttemptId: t.id.String(), Fence: int64(t.fence), TextDelta: stream.Msg().GetTextDelta()})
			}
			stream.Close()
		}
		op.Sleep(ctx, backoff.Next())
	}
}

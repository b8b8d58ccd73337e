package sim

import (
	"context"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/engine"
)

// startDevice lets a claimed device action happen after a while: usually soon,
// sometimes so late that its lease has ended.
func (m *machine) startDevice(e *entry) {
	delay := m.s.between(0, 30*time.Millisecond)
	if !m.s.healed && m.s.chance(m.s.plan.network.late) {
		delay = m.s.between(time.Second, 40*time.Second)
	}
	m.after(delay, m.name+" does "+e.id.String(), func() { m.perform(e) })
}

// perform asks the lease right before the effect (INV-20), and journals the
// result before anybody hears of it.
func (m *machine) perform(e *entry) {
	if e.ended() || m.entry(e.id) != e {
		return
	}
	var r *runnerv1.Result
	if err := e.permit(); err != nil {
		r = failed(protocol.CodeOf(err), err.Error())
	} else {
		m.s.acts(m, e.id)
		m.s.turned(m, e, e.work.GetDevice().GetAction())
		r = m.s.world.do(m.id, e.work.GetDevice())
		if !m.reach(fault.EdgeEffectDone) {
			return
		}
	}
	m.settle(e, r)
}

// settle journals how an action ended.
func (m *machine) settle(e *entry, r *runnerv1.Result) {
	e.result(m, r)
	m.s.note("%s journals a result of %s: %s %s", m.name, e.id, r.Status, r.Code)
	if m.reach(fault.EdgeResultJournalled) {
		m.report()
	}
}

// recover takes up one attempt after a start of the daemon. An interrupted action
// is inspected, never repeated (INV-5), and one that waits for its owner goes on
// waiting; a turn that has begun is never begun
// again (INV-14).
func (m *machine) recover(e *entry) {
	if e.lease == nil {
		e.life = newLife(m.s)
	}
	switch {
	case e.work == nil || e.ended():
	case e.waits():
		e.acked = 0 // what the server has, it says to each daemon anew
		m.awaitKey(e)
	case !e.turn():
		r := m.s.world.inspect(m.id, e.work.GetDevice())
		m.s.note("%s inspects %s: %s", m.name, e.id, r.Status)
		e.result(m, r)
	case e.worker != nil && e.worker.up:
		m.s.note("%s finds the supervisor of %s", m.name, e.id)
	}
}

// supervise deals with a turn that has a lease and no supervisor: one that never
// began begins now, any other was interrupted.
func (m *machine) supervise(e *entry) {
	if len(e.record) == 0 {
		m.startWorker(e)
		return
	}
	e.result(m, failed("interrupted", "the supervisor ended before the turn had finished"))
	m.report()
}

// reportBatch bounds the records of one call.
const reportBatch = 16

// report sends what the journal has and the server has not.
func (m *machine) report() {
	if m.epoch == 0 {
		return
	}
	for _, e := range append([]*entry(nil), m.entries...) {
		if ready := int64(e.synced); e.work != nil && !e.reporting && e.acked < ready && (e.turn() || e.ended() || e.waits()) {
			m.reportOne(e, e.record[e.acked:min(ready, e.acked+reportBatch)])
		}
	}
}

// reportOne sends records; a patch that they name goes first.
func (m *machine) reportOne(e *entry, records []*runnerv1.Record) {
	e.reporting = true
	for _, r := range records {
		for _, digest := range []string{r.GetCheckpoint().GetPatchDigest(), r.GetResult().GetPatchDigest()} {
			if digest != "" && !e.put[digest] {
				m.put(e, digest)
				return
			}
		}
	}
	epoch, id, fence, last := m.epoch, e.id, e.fence, records[len(records)-1].Seq
	req := &runnerv1.ReportRequest{AttemptId: id.String(), Fence: int64(fence), Epoch: epoch, Records: records}
	m.wire = append(m.wire[max(0, len(m.wire)-20):], req)
	toServer(m, "report "+id.String(), func(ctx context.Context, eng *engine.Engine) (*runnerv1.ReportResponse, error) {
		m.s.reports(id, fence)
		return eng.Report(ctx, m.caller, req)
	}, func(resp *runnerv1.ReportResponse, err error) { m.reported(e, last, resp, err) })
}

func (m *machine) reported(e *entry, last int64, resp *runnerv1.ReportResponse, err error) {
	e.reporting = false
	switch {
	case m.entry(e.id) != e:
		return
	case err != nil && transient(err):
		m.after(m.backoff(), "", m.report)
		return
	case err != nil:
		m.s.note("%s: records of %s are refused for good: %v", m.name, e.id, err)
		e.acked = last
		if e.waits() {
			m.cutOff(e, protocol.Errorf(protocol.CodeStaleFence, "the server does not wait for %s any more", e.id))
		}
	case resp.EvidenceOnly:
		e.acked = last
		m.cutOff(e, protocol.Errorf(protocol.CodeStaleFence, "another attempt replaced %s", e.id))
	default:
		e.acked = resp.AcceptedSeq
	}
	if e.ended() && e.acked >= int64(len(e.record)) {
		m.forget(e)
		return
	}
	m.report()
	m.awaitKey(e)
}

// put uploads a patch.
func (m *machine) put(e *entry, digest string) {
	toServer(m, "blob of "+e.id.String(), func(ctx context.Context, eng *engine.Engine) (struct{}, error) {
		return struct{}{}, eng.BlobStored(ctx, m.caller, e.id, e.fence, digest, 1)
	}, func(_ struct{}, err error) {
		e.reporting = false
		if err != nil && transient(err) {
			m.after(m.backoff(), "", m.report)
			return
		}
		e.put[digest] = true // refused for good: the report says what that means
		m.report()
	})
}

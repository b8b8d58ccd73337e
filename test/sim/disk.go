package sim

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// entry is one attempt on a machine's disk, and what the daemon of one life
// knows of it.
type entry struct {
	id     protocol.AttemptID
	nonce  string
	fence  protocol.Fence
	work   *runnerv1.Work // nil before the claim is journalled
	record []*runnerv1.Record
	synced int   // of the records, on the disk
	acked  int64 // of the records, at the server

	life
}

// life is lost with the daemon.
type life struct {
	sent      time.Duration // when the last claim or renewal was sent
	authority time.Duration
	judged    bool // the server gave terms to this daemon
	lost      bool // the server may give the work to another
	cut       error
	terms     *runnerv1.LeaseTerms
	reporting bool
	put       map[string]bool // patches that the server has
	worker    *worker
}

func (e *entry) turn() bool { return e.work.GetTurn() != nil }
func (e *entry) ended() bool {
	return len(e.record) > 0 && e.record[len(e.record)-1].GetResult() != nil
}

// append journals one record.
func (e *entry) append(r *runnerv1.Record, durable bool) {
	if e.ended() {
		return // nothing comes after a result
	}
	r.Seq, r.AtUs = int64(len(e.record))+1, time.Now().UnixMicro()
	e.record = append(e.record, r)
	if durable {
		e.synced = len(e.record)
	}
}

func (e *entry) result(r *runnerv1.Result) {
	e.append(&runnerv1.Record{Kind: &runnerv1.Record_Result{Result: r}}, true)
}

// grant takes terms that came in answer to a request sent at sent.
func (e *entry) grant(sent time.Duration, t *runnerv1.LeaseTerms) {
	if e.judged && sent < e.sent {
		return // an older answer
	}
	e.judged, e.sent, e.terms = true, sent, t
	e.authority = time.Duration(t.AuthorityTtlMs) * time.Millisecond
}

// permit is asked right before an effect. INV-20.
func (e *entry) permit(now time.Duration) error {
	switch {
	case e.cut != nil:
		return e.cut
	case now-e.sent >= e.authority:
		return protocol.Errorf(protocol.CodeLeaseExpired, "the lease of attempt %s was not renewed in time", e.id)
	}
	return nil
}

// power is what a power failure leaves of an entry: nothing when its claim was
// never journalled and the nonce was not written back, and no record that was
// not synced.
func (e *entry) power(s *Sim) (kept bool) {
	if e.work == nil && s.chance(0.8) {
		return false
	}
	e.record = e.record[:e.synced]
	e.life = life{}
	return true
}

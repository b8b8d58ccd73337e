package sim

import (
	"time"

	"bivouac/edge/lease"
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
	spec   string         // digest of the work
	record []*runnerv1.Record
	synced int   // of the records, on the disk
	acked  int64 // of the records, at the server
	// question that its owner was asked instead of an intent, if any.
	question *keyQuestion

	life
}

// life is lost with the daemon.
type life struct {
	lease     *lease.Lease
	judged    bool // the server gave terms to this daemon
	lost      bool // the server may give the work to another
	cut       error
	terms     *runnerv1.LeaseTerms
	reporting bool
	put       map[string]bool // patches that the server has
	worker    *worker
	look      *event // at the question
}

func (e *entry) turn() bool { return e.work.GetTurn() != nil }
func (e *entry) ended() bool {
	return len(e.record) > 0 && e.record[len(e.record)-1].GetResult() != nil
}

// newLife is what a daemon knows of an entry that it has just found.
func newLife(s *Sim) life { return life{lease: lease.NewLease(s.now), put: map[string]bool{}} }

// append journals one record, with the time that the machine's clock shows.
func (e *entry) append(m *machine, r *runnerv1.Record, durable bool) {
	if e.ended() {
		return // nothing comes after a result
	}
	r.Seq, r.AtUs = int64(len(e.record))+1, time.Now().Add(m.skew).UnixMicro()
	e.record = append(e.record, r)
	if durable {
		e.synced = len(e.record)
	}
}

// result journals the last record, as soon as the disk has space for it.
func (e *entry) result(m *machine, r *runnerv1.Result) {
	if m.disk.fails() {
		m.s.note("%s cannot journal the result of %s yet", m.name, e.id)
		m.after(time.Second, "", func() {
			if m.entry(e.id) == e {
				e.result(m, r)
				m.report()
			}
		})
		return
	}
	e.append(m, &runnerv1.Record{Kind: &runnerv1.Record_Result{Result: r}}, true)
}

// grant takes terms that came in answer to a request sent at sent.
func (e *entry) grant(sent time.Duration, t *runnerv1.LeaseTerms) {
	e.judged, e.terms = true, t
	e.lease.Renew(sent, time.Duration(t.AuthorityTtlMs)*time.Millisecond, time.Duration(t.RetentionMs)*time.Millisecond)
}

// permit is asked right before an effect. INV-20.
func (e *entry) permit() error {
	switch {
	case e.cut != nil:
		return e.cut
	case e.lease.Authority() <= 0:
		return protocol.Errorf(protocol.CodeLeaseExpired, "the lease of attempt %s was not renewed in time", e.id)
	}
	return nil
}

// over: nothing can bring its authority back. A machine that can freeze holds a
// turn until the end of its retention, and any holds what waits for its owner. INV-20.
func (e *entry) over(m *machine) bool {
	holds := e.waits() || m.freezes && e.turn()
	return e.lease.Authority() <= 0 && (!holds || e.lease.Retention() <= 0)
}

// power is what a power failure leaves of an entry: nothing when its claim was
// never journalled and the nonce was not written back, and no record that was
// not synced.
func (e *entry) power(s *Sim) (kept bool) {
	if e.work == nil && s.chance(0.8) {
		return false
	}
	e.record = e.record[:e.synced]
	e.life = newLife(s)
	return true
}

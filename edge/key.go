package edge

import (
	"sync"
	"time"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
)

// question asks the owner of this machine for the second key over one action, as it
// is journalled with the claim. A decision binds its digest and nothing else.
type question struct {
	Digest string `json:"digest"`
	// Over is the kind of work.
	Over string `json:"over"`
	// Place is the folder on the disk in which the action was allowed when it came.
	Place string `json:"place,omitempty"`
	// TTLMs is how long it waits, by elapsed time.
	TTLMs int64 `json:"ttl_ms"`
	// When it was asked, by the wall clock, and by the elapsed time of one start of
	// the machine, which no setting of a clock moves.
	AskedUs   int64  `json:"asked_us"`
	ElapsedMs int64  `json:"elapsed_ms"`
	Boot      string `json:"boot,omitempty"`
}

// left of its time. Elapsed time counts while the machine stays up; after a restart
// of it the wall clock does, and either can end it: a question may end early, and
// never lives longer than its ttl by both.
func (q *question) left(elapsed time.Duration, now time.Time, boot string) time.Duration {
	ttl := time.Duration(q.TTLMs) * time.Millisecond
	if q.Boot == boot {
		return ttl - q.waited(elapsed, now, boot)
	}
	return min(ttl, ttl-q.waited(elapsed, now, boot))
}

// waited since it was asked.
func (q *question) waited(elapsed time.Duration, now time.Time, boot string) time.Duration {
	if q.Boot == boot {
		return elapsed - time.Duration(q.ElapsedMs)*time.Millisecond
	}
	return now.Sub(time.UnixMicro(q.AskedUs))
}

// heldKey is a question that waits here, with what wakes who waits for its answer.
type heldKey struct {
	attempt *attempt
	asked   *question
	work    *runnerv1.DeviceWork
	wake    op.Bell
}

// keys are the questions of this machine that have no end yet.
type keys struct {
	byAttempt[*heldKey]
	// deciding makes decisions one after the other: the first one counts.
	deciding sync.Mutex
}

func (k *keys) open() int { return len(k.all()) }

// wakeAll has every waiting action look again.
func (k *keys) wakeAll() {
	for _, h := range k.all() {
		h.wake.Ring()
	}
}

// question of a claimed action; nil when the owner holds no second key over it.
func (d *Daemon) question(a *attempt, w *runnerv1.DeviceWork) *question {
	in := d.rules.Load()
	key, ok := in.policy.KeyOver(w.GetAction())
	f, err := in.device.FolderOf(w)
	if !ok || err != nil {
		return nil // what is not allowed at all is refused, and nobody is asked
	}
	ttl := key.TTL
	if most := time.Duration(w.GetMaxOwnerWaitMs()) * time.Millisecond; most > 0 {
		ttl = min(ttl, most)
	}
	q := d.questionNow(w.GetAction(), ttl)
	q.Place, q.Digest = f.Path, secondkey.Digest(a.id, a.fence, d.enrolment.Runner, w)
	return q
}

// questionNow is one that begins to wait.
func (d *Daemon) questionNow(over string, ttl time.Duration) *question {
	return &question{Over: over, TTLMs: ttl.Milliseconds(), AskedUs: time.Now().UnixMicro(), ElapsedMs: d.cfg.Elapsed().Milliseconds(), Boot: thisBoot()}
}

// thisBoot of the machine, which does not change while a daemon runs.
var thisBoot = sync.OnceValue(bootID)

// holdBack keeps an action from starting until its question has an answer. It takes
// no place among those that run, and lives as long as the server keeps its lease.
func (d *Daemon) holdBack(a *attempt, w *runnerv1.DeviceWork, q *question) {
	if q == nil {
		return
	}
	a.freed.Store(true)
	a.holds.Store(true)
	d.keys.put(a.id, &heldKey{attempt: a, asked: q, work: w, wake: op.NewBell()})
	d.wakeReport.Ring()
}

// keyLeft is how long a question still waits: as it was asked, or shorter where
// edge.hcl says so by now.
func (d *Daemon) keyLeft(asked *question) time.Duration {
	q := *asked
	if k, ok := d.rules.Load().policy.KeyOver(q.Over); ok {
		q.TTLMs = min(q.TTLMs, k.TTL.Milliseconds())
	}
	return q.left(d.cfg.Elapsed(), time.Now(), thisBoot())
}

// unlocked asks, right before the effect, for a key that the owner holds by now and
// that was not given: a file that was changed meanwhile counts at once.
func (d *Daemon) unlocked(id protocol.AttemptID, now *rules, w *runnerv1.DeviceWork) error {
	if _, held := now.policy.KeyOver(w.GetAction()); !held || d.actions.entry(id).decided.GetDecision() == secondkey.Approved {
		return nil
	}
	return protocol.Errorf(protocol.CodePermissionDenied, "the owner of this machine wants to be asked about %s by now: ask again", w.GetAction())
}

// heard notes what the server has of an action that waits.
func (d *Daemon) heard(id protocol.AttemptID, res *runnerv1.ReportResponse) {
	if res.GetEvidenceOnly() {
		d.unheard(id, protocol.Errorf(protocol.CodeStaleFence, "another attempt replaced %s", id))
		return
	}
	d.actions.accept(id, res.GetAcceptedSeq())
	if h := d.keys.get(id); h != nil {
		h.wake.Ring()
	}
}

// unheard ends an action that waits: the server takes nothing of it any more.
func (d *Daemon) unheard(id protocol.AttemptID, err error) {
	if a := d.table.get(id); a != nil {
		d.cutOff(a, protocol.Errorf(protocol.CodeStaleFence, "the server does not wait for it any more: %w", err))
	}
}

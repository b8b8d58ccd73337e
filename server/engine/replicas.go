package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/store"
)

// leadName is the one lead: the ticks that one replica alone runs share it.
const leadName = "ticks"

// replicas is what this replica knows of itself and of the others that share its
// store. A sign of life is a number that grows in the store; how long another's
// stood still is measured here, by elapsed time, and only between own signs that
// were committed. So neither a wrong clock nor a database that hangs makes a
// living replica look dead; and a replica that could not give a sign for the ttl
// knows by itself that others may have taken its place.
type replicas struct {
	self    execution.Replica
	ttl     time.Duration
	alone   bool
	elapsed lease.Elapsed

	mu      sync.Mutex // guards below
	entered bool
	signed  time.Duration // when the last committed sign was begun, or our life
	nextAt  time.Duration
	renewAt time.Duration
	looked  time.Duration
	seen    map[protocol.ReplicaID]*sighting // nil before the first look
	lead    protocol.Fence                   // zero: another leads
}

// sighting is another replica as it was seen last.
type sighting struct {
	row    execution.Replica
	lives  bool          // it gave a sign while we looked
	silent time.Duration // time since then, as far as we were there to see
}

func newReplicas(c Config, boot string) *replicas {
	return &replicas{
		self: execution.Replica{ID: c.Replica, Boot: boot, Blobs: c.Blobs},
		ttl:  c.Limits.ReplicaTTL, alone: c.Alone, elapsed: c.Elapsed, signed: c.Elapsed(),
	}
}

// beats of one ttl: as many may be lost, less one.
const beatsPerTTL = 4

// due reports that a sign is due, the first one at once, and whether rows are to be renewed with it.
func (r *replicas) due() (sign, renew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.elapsed()
	return now >= r.nextAt, !r.entered || now >= r.renewAt
}

func (r *replicas) dueIn() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nextAt - r.elapsed()
}

// postpone tries a sign that failed again soon.
func (r *replicas) postpone() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nextAt = r.elapsed() + r.ttl/(4*beatsPerTTL)
}

func (r *replicas) gave(begun, renewIn time.Duration, renewed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entered, r.signed, r.nextAt = true, begun, begun+r.ttl/beatsPerTTL
	if renewed {
		r.renewAt = begun + renewIn
	}
}

// observe takes in what the store says of the others. news says that one of them
// is gone since the last look.
func (r *replicas) observe(rows []execution.Replica) (news bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.elapsed()
	step := min(now-r.looked, r.ttl/2) // what we did not see counts little
	if r.seen == nil {
		step, news = 0, true
	}
	r.looked = now
	before := r.seen
	r.seen = map[protocol.ReplicaID]*sighting{}
	for _, row := range rows {
		s := before[row.ID]
		switch {
		case row.ID == r.self.ID:
			continue
		case s == nil:
			s = &sighting{row: row}
		case s.row.Beat != row.Beat || s.row.Boot != row.Boot:
			s = &sighting{row: row, lives: true}
			if err == nil {
				err = r.apart(row)
			}
		default:
			was := r.silentLocked(s)
			s.silent += step
			news = news || !was && r.silentLocked(s)
		}
		r.seen[row.ID] = s
	}
	return news || len(r.seen) < len(before), err
}

// apart refuses to run beside a replica that keeps artifacts elsewhere: half of
// all patches would be missing. The one that came later gives way.
func (r *replicas) apart(other execution.Replica) error {
	if r.self.Blobs == "" || other.Blobs == "" || r.self.Blobs == other.Blobs {
		return nil
	}
	if r.self.StartedAt.Before(other.StartedAt) {
		return nil
	}
	return &ended{protocol.Errorf(protocol.CodeFailedPrecondition,
		"server %s uses the same database and keeps its artifacts in another place: give all servers of one database the same directory with --blobs, or one database each", other.ID)}
}

func (r *replicas) silentLocked(s *sighting) bool { return r.alone || s.silent >= r.ttl }

// here reports that this replica has its row: before that it owns nothing.
func (r *replicas) here() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.entered
}

// gone reports a replica that gives no sign any more, or has no row.
func (r *replicas) gone(id protocol.ReplicaID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil || id == r.self.ID {
		return false
	}
	s := r.seen[id]
	return s == nil || r.silentLocked(s)
}

// missing are the replicas that have rows and are gone, as they were seen.
func (r *replicas) missing() (out []execution.Replica) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.seen {
		if r.silentLocked(s) {
			out = append(out, s.row)
		}
	}
	return out
}

// beat of a replica as it was seen; zero when it has no row.
func (r *replicas) beat(id protocol.ReplicaID) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.seen[id]; s != nil {
		return s.row.Beat
	}
	return 0
}

// standing refuses what rests on this replica's word alone, once others may have
// taken its place: it cannot know of it, since they would say so in the store.
// INV-20.
func (r *replicas) standing() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.alone || r.elapsed()-r.signed < r.ttl {
		return nil
	}
	return protocol.Errorf(protocol.CodeUnavailable, "this server has not reached its database for %s, and another may have taken its place: connect again", r.ttl)
}

// leading is the fence of the lead, zero when another has it. A holder that could
// not give a sign for the ttl no longer counts on it.
func (r *replicas) leading() protocol.Fence {
	if r.standing() != nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lead
}

func (r *replicas) leadIs(f protocol.Fence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lead = f
}

// ended is an error after which this process must not go on as this replica.
type ended struct{ error }

func (e *ended) Unwrap() error { return e.error }

// sign gives a sign of life and, now and then, renews what this replica holds.
func (e *Engine) sign(ctx context.Context, renew bool) error {
	e.replicas.mu.Lock()
	entered, self := e.replicas.entered, e.replicas.self
	e.replicas.mu.Unlock()
	attached, away := e.links.epochs()
	var lost []protocol.RunnerID
	err := e.cfg.Store.Update(ctx, store.AsLoop("owners"), func(tx *store.Tx) error {
		lost = nil
		if err := tx.Unaltered(); err != nil {
			return &ended{err}
		}
		if !entered {
			self.StartedAt = tx.Now
			if err := tx.EnterReplica(self); err != nil {
				return err
			}
		} else if err := tx.BeatReplica(self.ID, self.Boot); protocol.CodeOf(err) == protocol.CodeStaleFence {
			return &ended{protocol.Errorf(protocol.CodeFailedPrecondition,
				"another process runs as this server, %s: each needs a data directory of its own; a copy of one is the same server", self.ID)}
		} else if err != nil {
			return err
		}
		if !renew {
			return nil
		}
		var err error
		if lost, err = tx.RenewConnections(self.ID, slices.Sorted(maps.Keys(attached)), tx.Now.Add(e.cfg.Limits.ConnectionTTL)); err != nil {
			return err
		}
		gone, err := e.replaced(tx, away)
		lost = append(lost, gone...)
		return err
	})
	if err != nil {
		return err
	}
	if !entered {
		e.replicas.mu.Lock()
		e.replicas.self.StartedAt = self.StartedAt
		e.replicas.mu.Unlock()
	}
	maps.Copy(attached, away)
	for _, id := range lost { // it talks to another replica by now
		e.links.drop(id, attached[id])
		e.cfg.Log.Info("runner is another replica's", "runner", id)
	}
	return nil
}

// replaced are those of the runners whose transport is gone here that went to another
// replica: a renewal of theirs that was on its way would count here for ever. INV-20.
func (e *Engine) replaced(tx *store.Tx, away map[protocol.RunnerID]int64) (gone []protocol.RunnerID, err error) {
	if len(away) == 0 || e.cfg.Alone {
		return nil, nil
	}
	rows, err := tx.Connections()
	own := map[protocol.RunnerID]bool{}
	for _, row := range rows {
		own[row.Runner] = row.Replica == e.cfg.Replica
	}
	for _, r := range slices.Sorted(maps.Keys(away)) {
		if !own[r] {
			gone = append(gone, r)
		}
	}
	return gone, err
}

// look sees who else is there, and takes the lead when nobody has it.
func (e *Engine) look(ctx context.Context) (news bool, err error) {
	var rows []execution.Replica
	var lead execution.Lead
	err = e.cfg.Store.View(ctx, store.AsLoop("owners"), func(tx *store.Tx) (err error) {
		if rows, err = tx.Replicas(); err != nil {
			return err
		}
		if lead, err = tx.Lead(leadName); notFound(err) {
			lead, err = execution.Lead{}, nil
		}
		return err
	})
	if err != nil {
		return false, err
	}
	if news, err = e.replicas.observe(rows); err != nil {
		return false, err
	}
	if news {
		e.orphans.Ring()
	}
	led, err := e.takeLead(ctx, lead)
	return led, errors.Join(err, e.forgetGone(ctx))
}

func (e *Engine) takeLead(ctx context.Context, lead execution.Lead) (bool, error) {
	held := e.replicas.leading()
	switch {
	case held != 0 && held == lead.Fence && lead.Replica == e.cfg.Replica:
		return false, nil
	case lead.Fence != 0 && lead.Replica != e.cfg.Replica && !e.replicas.gone(lead.Replica):
		e.replicas.leadIs(0)
		return false, nil
	}
	err := e.cfg.Store.Update(ctx, store.AsLoop("owners"), func(tx *store.Tx) (err error) {
		lead, err = tx.TakeLead(leadName, e.cfg.Replica, lead.Fence)
		tx.Wake(store.TopicAttempts) // what waits for a runner waited for a leader
		return err
	})
	if lostRace(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	e.replicas.leadIs(lead.Fence)
	e.cfg.Log.Info("this replica leads", "fence", lead.Fence)
	return true, nil
}

// forgottenAfter is how long the row of a replica that is gone is kept.
const forgottenAfter = time.Hour

// forgetGone removes rows of replicas that are gone for long, as the leader.
func (e *Engine) forgetGone(ctx context.Context) error {
	if e.replicas.leading() == 0 {
		return nil
	}
	for _, row := range e.replicas.missing() {
		if e.replicas.silence(row.ID) < forgottenAfter {
			continue
		}
		if err := e.cfg.Store.Update(ctx, store.AsLoop("owners"), func(tx *store.Tx) error { return tx.ForgetReplica(row, row.Beat) }); err != nil {
			return err
		}
	}
	return nil
}

func (r *replicas) silence(id protocol.ReplicaID) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.seen[id]; s != nil {
		return s.silent
	}
	return 0
}

// leave says that this replica stops: others take its work up at once.
func (e *Engine) leave(ctx context.Context) error {
	e.replicas.mu.Lock()
	self, entered := e.replicas.self, e.replicas.entered
	e.replicas.mu.Unlock()
	if !entered || e.cfg.Alone {
		return nil
	}
	return e.cfg.Store.Update(ctx, store.AsLoop("owners"), func(tx *store.Tx) error { return tx.ForgetReplica(self, 0) })
}

// led makes a tick run on the replica that leads alone.
func (e *Engine) led(tick func(context.Context) (bool, error)) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		if e.replicas.leading() == 0 {
			return false, nil
		}
		return tick(ctx)
	}
}

// guardLead is first in every transaction of such a tick: a leader that was slow
// writes nothing after its successor. INV-3.
func (e *Engine) guardLead(tx *store.Tx) error {
	f := e.replicas.leading()
	if f == 0 {
		return protocol.Errorf(protocol.CodeStaleFence, "another replica leads")
	}
	return tx.Leads(leadName, f)
}

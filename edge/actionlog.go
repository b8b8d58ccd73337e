package edge

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/journal"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/state"
)

// actionLog is the journal of all device attempts: a nonce before the claim, the
// claim with the intent before the effect, the result after it, and a last word
// when the server has it. Where the owner holds a second key, the claim comes with
// the question, then the decision, and then the intent. What counts is on the disk
// when it returns.
type actionLog struct {
	journal *journal.Journal

	mu   sync.Mutex // guards live
	live map[protocol.AttemptID]*actionEntry
}

// actionEntry is what the log knows of one attempt.
type actionEntry struct {
	nonce   string
	fence   protocol.Fence
	claimed bool
	work    *runnerv1.DeviceWork
	records []*runnerv1.Record
	first   int64 // journal sequence of its first line
	// asked is the owner's question, if there is one, decided its answer.
	asked   *question
	decided *runnerv1.OwnerDecided
	// offer of a turn that the owner is asked about, and that is not claimed.
	offer []byte
	// intent: the effect may have begun.
	intent bool
	result bool
	// accepted records, by the server's word to this daemon.
	accepted int64
}

// add puts the next record behind those that are there.
func (e *actionEntry) add(at int64, r *runnerv1.Record) {
	r.Seq, r.AtUs = int64(len(e.records))+1, at
	e.records = append(e.records, r)
}

// intend adds the intent of the effect. INV-4.
func (e *actionEntry) intend(at int64) {
	e.intent = true
	e.add(at, &runnerv1.Record{Kind: &runnerv1.Record_EffectIntent{EffectIntent: &runnerv1.EffectIntent{
		ActionId: e.work.GetActionId(), ArgumentsDigest: e.work.GetArgumentsDigest(),
	}}})
}

// line is one journal record. Work and record are encoded messages.
type logLine struct {
	Attempt protocol.AttemptID `json:"attempt"`
	Nonce   string             `json:"nonce,omitempty"`
	Fence   int64              `json:"fence,omitempty"`
	Work    []byte             `json:"work,omitempty"`
	Asked   *question          `json:"asked,omitempty"`
	Offer   []byte             `json:"offer,omitempty"`
	Decided []byte             `json:"decided,omitempty"`
	Intent  bool               `json:"intent,omitempty"`
	AtUs    int64              `json:"at_us,omitempty"`
	Result  []byte             `json:"result,omitempty"`
	Done    bool               `json:"done,omitempty"`
}

// openActions reads the log back.
func openActions(dir *state.Dir, sync func(*os.File) error) (*actionLog, error) {
	j, err := journal.Open(dir.Journal(), journal.Options{StatusCommand: dir.Command("status"), SyncFunc: sync})
	if err != nil {
		return nil, err
	}
	l := &actionLog{journal: j, live: map[protocol.AttemptID]*actionEntry{}}
	err = j.Replay(0, func(seq int64, b []byte) error {
		var line logLine
		if err := json.Unmarshal(b, &line); err != nil {
			return protocol.Errorf(protocol.CodeDataLoss, "record %d of %s is not understood: %w", seq, dir.Journal(), err)
		}
		return l.apply(seq, line)
	})
	if err != nil {
		j.Close()
		return nil, err
	}
	return l, nil
}

// apply changes memory as a line says.
func (l *actionLog) apply(seq int64, line logLine) error {
	e := l.live[line.Attempt]
	if line.Done {
		delete(l.live, line.Attempt)
		return nil
	}
	if e == nil {
		e = &actionEntry{first: seq}
		l.live[line.Attempt] = e
	}
	if line.Nonce != "" {
		e.nonce = line.Nonce
	}
	if line.Offer != nil {
		e.offer, e.asked, e.decided = line.Offer, line.Asked, nil
	}
	if line.Fence != 0 {
		if err := e.claim(line); err != nil {
			return err
		}
	}
	if line.Decided != nil && e.decided == nil {
		d := new(runnerv1.OwnerDecided)
		if err := proto.Unmarshal(line.Decided, d); err != nil {
			return err
		}
		if e.decided = d; !e.claimed {
			return nil // of a turn: it goes with the claim
		}
		e.add(line.AtUs, &runnerv1.Record{Kind: &runnerv1.Record_OwnerDecided{OwnerDecided: d}})
	}
	if line.Intent && !e.intent {
		e.intend(line.AtUs)
	}
	if line.Result != nil && e.claimed && !e.result {
		r := new(runnerv1.Result)
		if err := proto.Unmarshal(line.Result, r); err != nil {
			return err
		}
		e.result = true
		e.add(line.AtUs, &runnerv1.Record{Kind: &runnerv1.Record_Result{Result: r}})
	}
	return nil
}

// claim is what the line of a claim says: with a question there is no intent yet.
func (e *actionEntry) claim(line logLine) error {
	e.work = new(runnerv1.DeviceWork)
	if err := proto.Unmarshal(line.Work, e.work); err != nil {
		return err
	}
	e.claimed, e.fence, e.asked, e.records = true, protocol.Fence(line.Fence), line.Asked, nil
	e.add(line.AtUs, &runnerv1.Record{Kind: &runnerv1.Record_Started{Started: &runnerv1.Started{}}})
	if e.asked == nil {
		e.intend(line.AtUs)
		return nil
	}
	e.add(line.AtUs, &runnerv1.Record{Kind: &runnerv1.Record_OwnerAsked{OwnerAsked: &runnerv1.OwnerAsked{
		Digest: e.asked.Digest, WaitMs: e.asked.TTLMs,
	}}})
	return nil
}

func (l *actionLog) append(line logLine, durable bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendLocked(line, durable)
}

func (l *actionLog) appendLocked(line logLine, durable bool) error {
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	seq, err := l.journal.Append(b, durable)
	if err != nil {
		return err
	}
	return l.apply(seq, line)
}

// nonce under which an attempt is claimed: made once, also over a restart.
func (l *actionLog) nonce(id protocol.AttemptID) (string, error) {
	l.mu.Lock()
	e := l.live[id]
	l.mu.Unlock()
	if e != nil {
		return e.nonce, nil
	}
	var b [16]byte
	rand.Read(b[:])
	nonce := hex.EncodeToString(b[:])
	// Not synced: without it on the disk the claim is not ours after a power
	// failure, and the server ends it.
	return nonce, l.append(logLine{Attempt: id, Nonce: nonce}, false)
}

// claimed makes claim and intent durable, before the effect; with a question, claim
// and question, and the intent is for later. INV-4.
func (l *actionLog) claimed(a *attempt, w *runnerv1.DeviceWork, q *question) error {
	b, err := proto.Marshal(w)
	if err != nil {
		return err
	}
	return l.append(logLine{Attempt: a.id, Fence: int64(a.fence), Work: b, Asked: q, AtUs: time.Now().UnixMicro()}, true)
}

// askedTurn makes the question about an offered turn durable.
func (l *actionLog) askedTurn(id protocol.AttemptID, offer []byte, q *question) error {
	return l.append(logLine{Attempt: id, Offer: offer, Asked: q}, true)
}

// offered are turns that the owner was asked about.
func (l *actionLog) offered() map[protocol.AttemptID]actionEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[protocol.AttemptID]actionEntry{}
	for id, e := range l.live {
		if e.offer != nil {
			out[id] = *e
		}
	}
	return out
}

// errOver refuses a decision about an attempt that has its result, or is gone.
var errOver = errors.New("the attempt is over")

// decide makes the owner's decision durable. The first one counts, and none that
// comes behind the end: it would be a record after the result, or one of nothing.
func (l *actionLog) decide(id protocol.AttemptID, d *runnerv1.OwnerDecided) error {
	b, err := proto.Marshal(d)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.live[id]; e == nil || e.result {
		return errOver
	}
	return l.appendLocked(logLine{Attempt: id, Decided: b, AtUs: time.Now().UnixMicro()}, true)
}

// intent makes the intent of an approved effect durable. INV-4.
func (l *actionLog) intent(id protocol.AttemptID) error {
	return l.append(logLine{Attempt: id, Intent: true, AtUs: time.Now().UnixMicro()}, true)
}

// entry is a copy of what is known of an attempt; the zero entry when it is gone.
func (l *actionLog) entry(id protocol.AttemptID) actionEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.live[id]; e != nil {
		return *e
	}
	return actionEntry{}
}

// accept notes what the server has.
func (l *actionLog) accept(id protocol.AttemptID, seq int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.live[id]; e != nil {
		e.accepted = max(e.accepted, seq)
	}
}

// result makes the outcome durable.
func (l *actionLog) result(id protocol.AttemptID, r *runnerv1.Result) error {
	b, err := proto.Marshal(r)
	if err != nil {
		return err
	}
	if b == nil {
		b = []byte{}
	}
	return l.append(logLine{Attempt: id, AtUs: time.Now().UnixMicro(), Result: b}, true)
}

// forget drops an attempt that the server has, or does not give us; cause is
// passed on when the log itself works.
func (l *actionLog) forget(id protocol.AttemptID, cause error) error {
	if err := l.append(logLine{Attempt: id, Done: true}, false); err != nil {
		return err
	}
	return l.prune(cause)
}

// prune gives back the space before the oldest attempt that still counts.
func (l *actionLog) prune(cause error) error {
	l.mu.Lock()
	keep := l.journal.Last() + 1
	for _, e := range l.live {
		keep = min(keep, e.first)
	}
	idle := len(l.live) == 0
	l.mu.Unlock()
	if idle && l.journal.Bytes() < pruneFrom {
		return cause // a new file costs two syncs: not for every action
	}
	if err := l.journal.Prune(keep - 1); err != nil {
		return err
	}
	return cause
}

// pruneFrom bytes on, a journal that holds nothing of use is made new.
const pruneFrom = 256 << 10

// unreported are attempts of which the server lacks the result, or what there is of
// the owner's second key.
func (l *actionLog) unreported() map[protocol.AttemptID]actionEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[protocol.AttemptID]actionEntry{}
	for id, e := range l.live {
		if e.result || e.claimed && e.asked != nil && e.accepted < int64(len(e.records)) {
			out[id] = *e
		}
	}
	return out
}

// claims are attempts that were claimed, for recovery.
func (l *actionLog) claims() map[protocol.AttemptID]actionEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[protocol.AttemptID]actionEntry{}
	for id, e := range l.live {
		if e.claimed {
			out[id] = *e
		}
	}
	return out
}

func (l *actionLog) close() { _ = l.journal.Close() }

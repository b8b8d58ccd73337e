package edge

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/journal"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/state"
)

// Records of a device attempt: it started, the intent of its effect, its result.
const (
	startedSeq = 1
	intentSeq  = 2
	resultSeq  = 3
)

// actionLog is the journal of all device attempts: a nonce before the claim, the
// claim with the intent before the effect, the result after it, and a last word
// when the server has it. Claim and result are on the disk when it returns.
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
}

// line is one journal record. Work and record are encoded messages.
type logLine struct {
	Attempt protocol.AttemptID `json:"attempt"`
	Nonce   string             `json:"nonce,omitempty"`
	Fence   int64              `json:"fence,omitempty"`
	Work    []byte             `json:"work,omitempty"`
	AtUs    int64              `json:"at_us,omitempty"`
	Result  []byte             `json:"result,omitempty"`
	Done    bool               `json:"done,omitempty"`
}

// openActions reads the log back.
func openActions(dir *state.Dir) (*actionLog, error) {
	j, err := journal.Open(dir.Journal(), journal.Options{StatusCommand: dir.Command("status")})
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
	if line.Fence != 0 {
		e.work = new(runnerv1.DeviceWork)
		if err := proto.Unmarshal(line.Work, e.work); err != nil {
			return err
		}
		e.claimed, e.fence = true, protocol.Fence(line.Fence)
		e.records = []*runnerv1.Record{
			{Seq: startedSeq, AtUs: line.AtUs, Kind: &runnerv1.Record_Started{Started: &runnerv1.Started{}}},
			{Seq: intentSeq, AtUs: line.AtUs, Kind: &runnerv1.Record_EffectIntent{EffectIntent: &runnerv1.EffectIntent{
				ActionId: e.work.GetActionId(), ArgumentsDigest: e.work.GetArgumentsDigest(),
			}}},
		}
	}
	if line.Result != nil && len(e.records) == intentSeq {
		r := new(runnerv1.Result)
		if err := proto.Unmarshal(line.Result, r); err != nil {
			return err
		}
		e.records = append(e.records, &runnerv1.Record{Seq: resultSeq, AtUs: line.AtUs, Kind: &runnerv1.Record_Result{Result: r}})
	}
	return nil
}

func (l *actionLog) append(line logLine, durable bool) error {
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
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

// claimed makes claim and intent durable, before the effect. INV-4.
func (l *actionLog) claimed(a *attempt, w *runnerv1.DeviceWork) error {
	b, err := proto.Marshal(w)
	if err != nil {
		return err
	}
	return l.append(logLine{Attempt: a.id, Fence: int64(a.fence), Work: b, AtUs: time.Now().UnixMicro()}, true)
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

// unreported are attempts whose result waits for the server.
func (l *actionLog) unreported() map[protocol.AttemptID]actionEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[protocol.AttemptID]actionEntry{}
	for id, e := range l.live {
		if len(e.records) >= resultSeq {
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

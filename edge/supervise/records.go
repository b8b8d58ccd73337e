package supervise

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/journal"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

var deterministic = proto.MarshalOptions{Deterministic: true}

// records is the attempt's journal as runner records. Readers see a record when
// it is on the disk.
type records struct {
	journal *journal.Journal

	mu      sync.Mutex // guards the fields below
	started bool       // a Started record was found or written
	result  int64      // sequence of the result; zero without one
	acked   int64
	changed chan struct{} // closed and replaced at each change
	dirty   chan struct{} // has a token while something waits to be synced
}

// openRecords reads what an earlier supervisor left.
func openRecords(dir, statusCommand string) (*records, error) {
	j, err := journal.Open(dir, journal.Options{StatusCommand: statusCommand})
	if err != nil {
		return nil, err
	}
	r := &records{journal: j, changed: make(chan struct{}), dirty: make(chan struct{}, 1)}
	err = j.Replay(0, func(seq int64, b []byte) error {
		rec := &runnerv1.Record{}
		if err := proto.Unmarshal(b, rec); err != nil {
			return err
		}
		r.started = true
		if rec.GetResult() != nil {
			r.result = seq
		}
		return nil
	})
	// The beginning of a long journal may be pruned.
	r.started = r.started || j.Last() > 0
	return r, err
}

// append adds one record. A durable one, and all before it, are on the disk when
// it returns; others get there soon, by runSync.
func (r *records) append(rec *runnerv1.Record, durable bool) (int64, error) {
	rec.AtUs = time.Now().UnixMicro()
	seq, err := r.journal.AppendFunc(func(seq int64) ([]byte, error) {
		rec.Seq = seq
		return deterministic.Marshal(rec)
	}, durable)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = true
	if rec.GetResult() != nil {
		r.result = seq
	}
	if durable {
		r.announceLocked()
		return seq, nil
	}
	select {
	case r.dirty <- struct{}{}:
	default:
	}
	return seq, nil
}

func (r *records) announceLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// syncEvery gathers events of a moment into one sync.
const syncEvery = 25 * time.Millisecond

// runSync puts events on the disk soon after they were appended.
func (r *records) runSync(ctx context.Context) error {
	for {
		select {
		case <-r.dirty:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-time.After(syncEvery):
		case <-ctx.Done():
		}
		if err := r.journal.Sync(); err != nil {
			return err
		}
		r.mu.Lock()
		r.announceLocked()
		r.mu.Unlock()
	}
}

// Bounds of one message of records.
const (
	batchRecords = 256
	batchBytes   = 1 << 20
)

// batch reads durable records after a sequence.
func (r *records) batch(after int64) ([]*runnerv1.Record, error) {
	durable := r.journal.Durable()
	if after >= durable {
		return nil, nil
	}
	var out []*runnerv1.Record
	size := 0
	err := r.journal.Replay(after, func(seq int64, b []byte) error {
		if seq > durable || len(out) == batchRecords || size > batchBytes {
			return errBatchFull
		}
		rec := &runnerv1.Record{}
		if err := proto.Unmarshal(b, rec); err != nil {
			return err
		}
		out, size = append(out, rec), size+len(b)
		return nil
	})
	if err == errBatchFull {
		err = nil
	}
	return out, err
}

var errBatchFull = protocol.Errorf(protocol.CodeInternal, "batch is full")

// wait is closed at the next change.
func (r *records) wait() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// pruneAt is the size from which acknowledged records are forgotten before the
// attempt ends. A small journal keeps all, so that a restart sees the whole.
const pruneAt = 8 << 20

// acknowledge notes that the server has everything up to seq.
func (r *records) acknowledge(seq int64) error {
	seq = min(seq, r.journal.Durable())
	r.mu.Lock()
	r.acked = max(r.acked, seq)
	keepFrom := r.result // the result stays until the end
	r.announceLocked()
	r.mu.Unlock()
	if r.journal.Bytes() < pruneAt {
		return nil
	}
	if keepFrom > 0 {
		seq = min(seq, keepFrom-1)
	}
	return r.journal.Prune(seq)
}

func (r *records) state() (started bool, result, acked int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.started, r.result, r.acked
}

package journal

import (
	"os"
	"path/filepath"
	"sync"

	"bivouac/edge/protocol"
)

// Options bound a journal. Zero values are the defaults.
type Options struct {
	// MaxBytes of all segments together. Default 64 MiB.
	MaxBytes int64
	// Reserve of MaxBytes that only durable records may use. Default MaxBytes/8.
	Reserve int64
	// SegmentBytes after which a new file begins. Default 1 MiB.
	SegmentBytes int64
	// StatusCommand shows a person why the journal does not empty. Default
	// `bivouac-edge status`.
	StatusCommand string
	// SyncFunc puts what was written to a file on the disk. Default (*os.File).Sync.
	SyncFunc func(*os.File) error
}

func (o Options) withDefaults() Options {
	if o.MaxBytes == 0 {
		o.MaxBytes = 64 << 20
	}
	if o.Reserve == 0 {
		o.Reserve = o.MaxBytes / 8
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 1 << 20
	}
	if o.StatusCommand == "" {
		o.StatusCommand = "bivouac-edge status"
	}
	if o.SyncFunc == nil {
		o.SyncFunc = (*os.File).Sync
	}
	return o
}

// Journal is an open log. Its methods may be called from several goroutines.
type Journal struct {
	dir string
	opt Options

	mu       sync.Mutex // guards the fields below; held over writes, which are the point
	segments []segment  // oldest first; the last one is written to
	file     *os.File   // of the last segment
	next     int64
	durable  int64
	broken   error
	// failed is closed when the disk failed: nothing is appended any more.
	failed chan struct{}
}

// Failed is closed when the journal has ended because the disk failed. What is on
// the disk then, only opening it again can tell.
func (j *Journal) Failed() <-chan struct{} { return j.failed }

// Err says why Failed is closed; nil while the journal works.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.broken
}

// Append adds one record and returns its sequence. With durable it, and all
// records before it, are on the disk when Append returns.
func (j *Journal) Append(record []byte, durable bool) (int64, error) {
	return j.AppendFunc(func(int64) ([]byte, error) { return record, nil }, durable)
}

// AppendFunc is Append for records that contain their own sequence: build makes
// the bytes and must not call the journal.
func (j *Journal) AppendFunc(build func(seq int64) ([]byte, error), durable bool) (int64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.broken != nil {
		return 0, j.broken
	}
	payload, err := build(j.next)
	if err != nil {
		return 0, err
	}
	f := frame{seq: j.next, durable: j.durable, payload: payload}
	if err := j.admitLocked(f, durable); err != nil {
		return 0, err
	}
	if last := j.segments[len(j.segments)-1]; last.size > 0 && last.size+f.size() > j.opt.SegmentBytes {
		if err := j.rotateLocked(); err != nil {
			return 0, err
		}
		f.durable = j.durable
	}
	if err := j.writeLocked(f); err != nil {
		return 0, err
	}
	j.next++
	if durable {
		if err := j.syncLocked(); err != nil {
			return 0, err
		}
	}
	return f.seq, nil
}

// admitLocked refuses what does not fit.
func (j *Journal) admitLocked(f frame, durable bool) error {
	if len(f.payload) > MaxRecord {
		return protocol.Errorf(protocol.CodeInvalidArgument, "a journal record of %d bytes is larger than the limit of %d", len(f.payload), MaxRecord)
	}
	limit := j.opt.MaxBytes
	if !durable {
		limit -= j.opt.Reserve
	}
	if have := j.bytesLocked(); have+f.size() > limit {
		return protocol.Errorf(protocol.CodeQueueFull,
			"the journal %s holds %d bytes that the server has not accepted, and its limit is %d: it takes no more until the link to the server works again; see `%s`",
			j.dir, have, j.opt.MaxBytes, j.opt.StatusCommand)
	}
	return nil
}

// writeLocked writes a whole frame or nothing.
func (j *Journal) writeLocked(f frame) error {
	last := &j.segments[len(j.segments)-1]
	if _, err := j.file.WriteAt(f.encode(), last.size); err != nil {
		if cut := j.file.Truncate(last.size); cut != nil {
			j.breakLocked(cut)
		}
		return protocol.Errorf(protocol.CodeUnavailable, "the journal %s cannot be written: %w; check the disk", j.dir, err)
	}
	last.size += f.size()
	return nil
}

// Sync puts everything appended so far on the disk.
func (j *Journal) Sync() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.broken != nil {
		return j.broken
	}
	return j.syncLocked()
}

func (j *Journal) syncLocked() error {
	if j.durable == j.next-1 {
		return nil
	}
	if err := j.opt.SyncFunc(j.file); err != nil {
		return j.breakLocked(err)
	}
	j.durable = j.next - 1
	return nil
}

// breakLocked ends the journal: its state on disk is not known any more.
func (j *Journal) breakLocked(err error) error {
	if j.broken == nil {
		j.broken = protocol.Errorf(protocol.CodeDataLoss, "the journal %s failed: %w; check the disk (dmesg, smartctl -a)", j.dir, err)
		close(j.failed)
	}
	return j.broken
}

// rotateLocked begins the next segment. The old one is synced first, so that
// only the newest file can have a torn tail.
func (j *Journal) rotateLocked() error {
	if err := j.syncLocked(); err != nil {
		return err
	}
	s, file, err := createSegment(j.dir, j.next)
	if err != nil {
		return protocol.Errorf(protocol.CodeUnavailable, "the journal %s cannot grow: %w; check the disk", j.dir, err)
	}
	j.file.Close()
	j.segments, j.file = append(j.segments, s), file
	return nil
}

// Prune forgets records up to seq. Space comes back by whole segments.
func (j *Journal) Prune(seq int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.broken != nil {
		return j.broken
	}
	if last := j.segments[len(j.segments)-1]; seq >= j.next-1 && last.size > 0 {
		if err := j.rotateLocked(); err != nil {
			return err
		}
	}
	for len(j.segments) > 1 && j.segments[1].first <= seq+1 {
		if err := os.Remove(filepath.Join(j.dir, j.segments[0].name())); err != nil && !os.IsNotExist(err) {
			return err
		}
		j.segments = j.segments[1:]
	}
	return nil
}

// Last is the newest sequence, zero before the first.
func (j *Journal) Last() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next - 1
}

// Durable is the newest sequence that is on the disk.
func (j *Journal) Durable() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.durable
}

// Bytes on disk.
func (j *Journal) Bytes() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytesLocked()
}

func (j *Journal) bytesLocked() (n int64) {
	for _, s := range j.segments {
		n += s.size
	}
	return n
}

// Close syncs and ends the journal.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		return nil
	}
	var err error
	if j.broken == nil {
		err = j.syncLocked()
	}
	j.broken = protocol.Errorf(protocol.CodeFailedPrecondition, "the journal %s is closed", j.dir)
	j.file.Close()
	j.file = nil
	return err
}

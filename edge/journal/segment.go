package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
)

// segment is one file, named after the first sequence it may hold.
type segment struct {
	first int64
	size  int64 // bytes of whole frames
}

const segmentSuffix = ".journal"

func (s segment) name() string { return fmt.Sprintf("%016d%s", s.first, segmentSuffix) }

// createSegment makes an empty file whose name survives a crash.
func createSegment(dir string, first int64) (segment, *os.File, error) {
	s := segment{first: first}
	f, err := os.OpenFile(filepath.Join(dir, s.name()), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return s, nil, err
	}
	if err := errors.Join(f.Sync(), durable.SyncDir(dir)); err != nil {
		f.Close()
		return s, nil, err
	}
	return s, f, nil
}

// Open opens or creates the journal in dir, a directory of its own, and cuts
// off a torn tail.
func Open(dir string, o Options) (*Journal, error) {
	j := &Journal{dir: dir, opt: o.withDefaults(), next: 1, failed: make(chan struct{})}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, protocol.Errorf(protocol.CodeUnavailable, "the journal %s cannot be made: %w", dir, err)
	}
	var err error
	if j.segments, err = listSegments(dir); err != nil {
		return nil, err
	}
	if len(j.segments) > 0 {
		j.next = j.segments[0].first
	}
	for i := range j.segments {
		if err := j.recover(i); err != nil {
			return nil, err
		}
	}
	j.durable = j.next - 1
	if len(j.segments) == 0 {
		s, f, err := createSegment(dir, j.next)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeUnavailable, "the journal %s cannot be made: %w", dir, err)
		}
		j.segments, j.file = []segment{s}, f
		return j, nil
	}
	last := j.segments[len(j.segments)-1]
	if j.file, err = os.OpenFile(filepath.Join(dir, last.name()), os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	// What Replay now shows must stay: a crash of the process, not the machine,
	// left it in the page cache only.
	if err := errors.Join(j.file.Truncate(last.size), j.file.Sync(), durable.SyncDir(dir)); err != nil {
		j.file.Close()
		return nil, err
	}
	return j, nil
}

// recover reads segment i and finds where its whole frames end.
func (j *Journal) recover(i int) error {
	s := &j.segments[i]
	newest := i == len(j.segments)-1
	if s.first != j.next {
		return j.lost(s, j.next)
	}
	b, err := os.ReadFile(filepath.Join(j.dir, s.name()))
	if err != nil {
		return err
	}
	good, next, damaged := scan(b, s.first, nil)
	if damaged || (!newest && good != int64(len(b))) {
		return j.lost(s, next)
	}
	s.size, j.next = good, next
	return nil
}

func (j *Journal) lost(s *segment, seq int64) error {
	return protocol.Errorf(protocol.CodeDataLoss,
		"record %d in %s is damaged although it had been written safely: the disk lost it; move the directory %s away and report what ran last", seq, s.name(), j.dir)
}

func listSegments(dir string) ([]segment, error) {
	entries, err := os.ReadDir(dir) // sorted by name, and so by sequence
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeUnavailable, "the journal %s cannot be read: %w", dir, err)
	}
	var out []segment
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), segmentSuffix)
		if !ok || e.Type()&fs.ModeType != 0 {
			continue
		}
		first, err := strconv.ParseInt(name, 10, 64)
		if err != nil || first < 1 {
			return nil, protocol.Errorf(protocol.CodeDataLoss, "%s is not a name that a journal gives: move it away from %s", e.Name(), dir)
		}
		out = append(out, segment{first: first})
	}
	return out, nil
}

// Replay calls fn for every record after the given sequence, in order, up to
// what was appended when it began. fn may use the bytes only until it returns.
func (j *Journal) Replay(after int64, fn func(seq int64, record []byte) error) error {
	j.mu.Lock()
	if j.file == nil {
		defer j.mu.Unlock()
		return j.broken
	}
	type part struct {
		segment
		file *os.File
	}
	var parts []part
	var err error
	for i, s := range j.segments {
		if i+1 < len(j.segments) && j.segments[i+1].first <= after+1 {
			continue
		}
		f, openErr := os.Open(filepath.Join(j.dir, s.name()))
		if err = openErr; err != nil {
			break
		}
		defer f.Close()
		parts = append(parts, part{s, f})
	}
	j.mu.Unlock()
	if err != nil {
		return err
	}
	for _, p := range parts {
		b := make([]byte, p.size)
		if _, err := p.file.ReadAt(b, 0); err != nil && p.size > 0 {
			return err
		}
		var failed error
		good, next, _ := scan(b, p.first, func(f frame) {
			if failed == nil && f.seq > after {
				failed = fn(f.seq, f.payload)
			}
		})
		if failed != nil {
			return failed
		}
		if good != p.size {
			return j.lost(&p.segment, next)
		}
	}
	return nil
}

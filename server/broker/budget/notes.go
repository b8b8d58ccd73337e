package budget

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
)

// Config of a Ledger that outlives its process.
type Config struct {
	Boot string
	// Path of the notes.
	Path string
	// Host is the running kernel's boot id. Notes are not synced: they survive the
	// death of the process, not that of the kernel, and are believed only under the
	// Host that wrote them. An empty one believes none.
	Host    string
	Elapsed lease.Elapsed
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
}

// Open makes the ledger of a new boot and learns from the notes of earlier ones
// what they can have spent at most. Notes that cannot be believed are dropped:
// the slices of those boots count as spent.
func Open(c Config) (*Ledger, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	l := New(c.Boot, c.Elapsed)
	l.notes = &notes{path: c.Path, host: c.Host, now: c.Now}
	var err error
	if l.past, err = l.notes.read(); err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the notes of what was spent cannot be read: %w", err)
	}
	if err := l.rewriteLocked(); err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the notes of what is spent cannot be written: %w; mend the broker's disk", err)
	}
	return l, nil
}

// Stop closes the file.
func (l *Ledger) Stop() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.notes == nil || l.notes.file == nil {
		return nil
	}
	return l.notes.file.Close()
}

// Kinds of notes.
const (
	noteHost = "host" // first line: the kernel under which the file was written
	notePast = "past" // an earlier boot, whole, and when it ended
	noteBoot = "boot" // the boot of what follows
	noteHold = "hold" // a call may leave, and cost so much
	noteDone = "done" // what it cost
	noteSum  = "sum"  // what a slice drew before the file was rewritten
)

// note is one line.
type note struct {
	Kind   string           `json:"k"`
	Host   string           `json:"h,omitempty"`
	Boot   string           `json:"b,omitempty"`
	Slice  protocol.SliceID `json:"s,omitempty"`
	Call   int64            `json:"n,omitempty"`
	Cost   int64            `json:"c,omitempty"`
	Input  int64            `json:"i,omitempty"`
	Output int64            `json:"o,omitempty"`
	Calls  int64            `json:"m,omitempty"`
	AtUs   int64            `json:"t,omitempty"`
}

// notes is the file. A line that could not be written whole is cut off again.
type notes struct {
	path, host string
	now        func() time.Time
	file       *os.File
	size       int64 // of whole lines
	lines      int
	owed       []note // settlements that could not be written yet
}

// rewriteAt is how many lines a file has before those that say nothing any more
// are dropped.
const rewriteAt = 20_000

// noteLocked writes a line, after those that are owed.
func (l *Ledger) noteLocked(n note) error {
	f := l.notes
	if f == nil {
		return nil
	}
	if f.lines > rewriteAt && f.lines > 8*(len(l.slices)+len(l.past.slices)) {
		if err := l.rewriteLocked(); err != nil {
			return err
		}
		f = l.notes
	}
	for len(f.owed) > 0 {
		if err := f.write(f.owed[0]); err != nil {
			return err
		}
		f.owed = f.owed[1:]
	}
	return f.write(n)
}

// owedLocked writes a settlement, at the latest before the next reservation:
// until then the whole reservation counts.
func (l *Ledger) owedLocked(n note) {
	if l.notes != nil && l.noteLocked(n) != nil {
		l.notes.owed = append(l.notes.owed, n)
	}
}

func (f *notes) write(n note) error {
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if _, err := f.file.WriteAt(append(b, '\n'), f.size); err != nil {
		return errors.Join(err, f.file.Truncate(f.size))
	}
	f.size += int64(len(b)) + 1
	f.lines++
	return nil
}

// rewriteLocked writes a new file of what still says something, and goes on in it.
func (l *Ledger) rewriteLocked() error {
	f := l.notes
	temp := f.path + ".new"
	file, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	next := &notes{path: f.path, host: f.host, now: f.now, file: file}
	for _, n := range l.allLocked() {
		if err := next.write(n); err != nil {
			return errors.Join(err, file.Close(), os.Remove(temp))
		}
	}
	if err := os.Rename(temp, f.path); err != nil {
		return errors.Join(err, file.Close(), os.Remove(temp))
	}
	if f.file != nil {
		f.file.Close() // its content is in the new file
	}
	l.notes = next
	return nil
}

// allLocked are the notes of what is known now.
func (l *Ledger) allLocked() []note {
	out := []note{{Kind: noteHost, Host: l.notes.host}}
	for boot, ended := range l.past.boots {
		out = append(out, note{Kind: notePast, Boot: boot, AtUs: ended.UnixMicro()})
	}
	for id, s := range l.past.slices {
		out = append(out, note{Kind: noteSum, Boot: s.boot, Slice: id, Cost: s.drawn, Input: s.tokens.Input, Output: s.tokens.Output, Calls: s.calls})
	}
	out = append(out, note{Kind: noteBoot, Boot: l.boot})
	for id, t := range l.closed {
		if _, earlier := l.past.slices[id]; !earlier {
			out = append(out, t.acc.notes(l.boot, id)...)
		}
	}
	for id, a := range l.slices {
		out = append(out, a.notes(l.boot, id)...)
	}
	return out
}

// notes of what a slice drew, and of its open calls.
func (a *account) notes(boot string, id protocol.SliceID) []note {
	out := []note{{Kind: noteSum, Boot: boot, Slice: id, Cost: a.drawn, Input: a.tokens.Input, Output: a.tokens.Output, Calls: a.calls}}
	for call, amount := range a.open {
		out = append(out, note{Kind: noteHold, Slice: id, Call: call, Cost: amount})
	}
	return out
}

// read learns from the file what earlier boots spent at most.
func (f *notes) read() (past, error) {
	b, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return past{}, nil
	}
	if err != nil {
		return past{}, err
	}
	r := &reading{past: newPast(), live: map[protocol.SliceID]*account{}}
	first := true
	for line := range bytes.Lines(b) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // torn: its call never left, or counts whole
		}
		var n note
		if json.Unmarshal(line, &n) != nil || first && (n.Kind != noteHost || n.Host == "" || n.Host != f.host) {
			return past{}, nil
		}
		r.apply(n)
		first = false
	}
	return r.end(f.now()), nil
}

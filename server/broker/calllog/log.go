package calllog

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
)

// Config of a Log.
type Config struct {
	Path string
	// Retention: older entries may be forgotten. Default 7 days.
	Retention time.Duration
	// MaxEntries in memory and on disk after a compaction. Default 200 000.
	MaxEntries int
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
}

// Log is the call log of one broker. Lock order: syncing, then mu.
type Log struct {
	cfg Config

	syncing sync.Mutex // one fsync at a time; its waiters share it

	// mu guards what follows. Only a compaction holds it over an fsync: nothing
	// may be appended to a file that is about to be replaced.
	mu       sync.Mutex
	file     *os.File
	entries  map[protocol.ActionID]Entry
	since    time.Time
	lines    int   // in the file
	appended int64 // records ever appended
	synced   int64 // of them durable
	broken   error // after a failed write nothing more is sent
}

// Open reads the log and repairs a torn end.
func Open(cfg Config) (*Log, error) {
	if cfg.Retention == 0 {
		cfg.Retention = 7 * 24 * time.Hour
	}
	if cfg.MaxEntries == 0 {
		cfg.MaxEntries = 200_000
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	l := &Log{cfg: cfg, entries: map[protocol.ActionID]Entry{}, since: cfg.Now().Truncate(time.Microsecond)}
	if err := l.load(); err != nil {
		return nil, err
	}
	// Compacting at every start also makes the repaired end durable.
	if err := l.compact(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Log) load() error {
	f, err := os.Open(l.cfg.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the call log cannot be read: %w", err)
	}
	defer f.Close()
	records, _, middle, err := read(f)
	if err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the call log cannot be read: %w", err)
	}
	if middle || (len(records) > 0 && records[0].Kind != kindHead) {
		return protocol.Errorf(protocol.CodeDataLoss,
			"the call log %s is damaged in the middle: what was sent is no longer known; move the file away to go on, actions in flight will be unknown", l.cfg.Path)
	}
	for _, r := range records {
		l.apply(r)
	}
	return nil
}

func (l *Log) apply(r record) {
	at := time.UnixMicro(r.AtUs)
	switch e := l.entries[r.Action]; r.Kind {
	case kindHead:
		l.since = at
	case kindSent:
		l.entries[r.Action] = Entry{State: Sent, ArgsDigest: r.Args, KeyDigest: r.Key, At: at}
	case kindAnswered:
		e.State, e.Status, e.BodyDigest, e.Failed, e.At = Answered, r.Status, r.Body, r.Failed, at
		l.entries[r.Action] = e
	case kindBarred:
		l.entries[r.Action] = Entry{State: Barred, At: at}
	case kindUnsent:
		delete(l.entries, r.Action)
	}
}

// Call is what is about to be sent.
type Call struct {
	Action     protocol.ActionID
	ArgsDigest string
	// Key of idempotency; empty without one.
	Key string
	// Repeatable says that the upstream itself makes a repetition under the same
	// key harmless.
	Repeatable bool
}

// Begin makes the call SENT, durably, before the first byte leaves. An action
// that is in the log already is refused, unless it is repeatable under the very
// same key and arguments; first is false then. INV-4, INV-5.
func (l *Log) Begin(c Call) (first bool, err error) {
	var key string
	if c.Key != "" {
		key = canonical.Digest([]byte(c.Key))
	}
	l.mu.Lock()
	old, known := l.entries[c.Action]
	if known && !(c.Repeatable && key != "" && old.KeyDigest == key && old.ArgsDigest == c.ArgsDigest) {
		l.mu.Unlock()
		return false, refuse(c.Action, old)
	}
	err = l.appendLocked(record{Kind: kindSent, Action: c.Action, Args: c.ArgsDigest, Key: key})
	seq := l.appended
	l.mu.Unlock()
	if err != nil {
		return false, err
	}
	return !known, l.syncTo(seq)
}

func refuse(id protocol.ActionID, old Entry) error {
	switch old.State {
	case Barred:
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"action %s was given up after its absence from the call log was told: it is not sent any more", id)
	case Answered:
		return protocol.Errorf(protocol.CodeAlreadyExists,
			"action %s was sent and answered with status %d before: it is not sent again; look it up", id, old.Status)
	}
	return protocol.Errorf(protocol.CodeOutcomeUnknown,
		"action %s was sent before and no answer was seen: it is not sent again; see: bivouac unknown", id)
}

// Outcome is what an answer said.
type Outcome struct {
	Status     int
	BodyDigest string
	Failed     bool // the answer itself says no, whatever its status
}

// Answer records the outcome. A process that dies before leaves SENT, which is
// the truth it knew.
func (l *Log) Answer(id protocol.ActionID, o Outcome) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendLocked(record{Kind: kindAnswered, Action: id, Status: o.Status, Body: o.BodyDigest, Failed: o.Failed})
}

// Unsent takes the first Begin of an action back when it is certain that no
// byte left.
func (l *Log) Unsent(id protocol.ActionID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendLocked(record{Kind: kindUnsent, Action: id})
}

// Lookup is the evidence about an action. Whoever is told that it is absent may
// give it up, so a request that is still on its way must not be sent later:
// absence is made durable before it is told. INV-5.
func (l *Log) Lookup(id protocol.ActionID) (Entry, error) {
	l.mu.Lock()
	e, known := l.entries[id]
	if known {
		l.mu.Unlock()
		return e, nil
	}
	err := l.appendLocked(record{Kind: kindBarred, Action: id})
	seq := l.appended
	l.mu.Unlock()
	if err != nil {
		return Entry{}, err
	}
	return Entry{State: Barred}, l.syncTo(seq)
}

// Since is the instant from which on an absent action was not sent.
func (l *Log) Since() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since
}

// Close makes everything durable and closes the file.
func (l *Log) Close() error {
	l.mu.Lock()
	seq := l.appended
	l.mu.Unlock()
	err := l.syncTo(seq)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken == nil {
		l.broken = protocol.Errorf(protocol.CodeUnavailable, "the call log is closed: the broker is stopping")
	}
	return errors.Join(err, l.file.Close())
}

func (l *Log) appendLocked(r record) error {
	if l.broken != nil {
		return l.broken
	}
	r.AtUs = l.cfg.Now().UnixMicro()
	line, err := r.line()
	if err != nil {
		return err
	}
	if _, err := l.file.Write(line); err != nil {
		l.broken = protocol.Errorf(protocol.CodeUnavailable, "the call log cannot be written, nothing is sent: %w; mend the disk and restart bivouac-broker", err)
		return l.broken
	}
	l.appended++
	l.lines++
	l.apply(r)
	return nil
}

// syncTo returns when record seq is durable. Those who wait together share one
// fsync. It compacts when the file has grown to twice what it must hold.
func (l *Log) syncTo(seq int64) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	upTo, file, broken := l.appended, l.file, l.broken
	done := l.synced >= seq
	full := l.lines > 4*len(l.entries)+1024 || len(l.entries) > l.cfg.MaxEntries
	l.mu.Unlock()
	if done || broken != nil {
		return broken
	}
	if full {
		return l.compact()
	}
	err := file.Sync()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.broken = protocol.Errorf(protocol.CodeUnavailable, "the call log cannot be made durable, nothing is sent: %w; mend the disk and restart bivouac-broker", err)
		return l.broken
	}
	l.synced = max(l.synced, upTo)
	return nil
}

func (l *Log) dir() string { return filepath.Dir(l.cfg.Path) }

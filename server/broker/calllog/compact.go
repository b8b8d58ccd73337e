package calllog

import (
	"bufio"
	"os"
	"slices"
	"time"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
)

// compact writes the entries worth keeping to a new file that replaces the old
// one by rename. Forgotten entries move Since forward, so that silence is never
// taken for "not sent".
func (l *Log) compact() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked()
	next, err := l.rewriteLocked()
	if err != nil {
		err = protocol.Errorf(protocol.CodeUnavailable, "the call log cannot be rewritten, nothing is sent: %w; mend the disk and restart bivouac-broker", err)
		l.broken = err
		return err
	}
	if l.file != nil {
		l.file.Close() // its content is in the new file
	}
	l.file, l.synced = next, l.appended
	return nil
}

func (l *Log) forgetLocked() {
	limit := l.cfg.Now().Add(-l.cfg.Retention)
	if n := len(l.entries) - l.cfg.MaxEntries/2; len(l.entries) > l.cfg.MaxEntries {
		at := make([]time.Time, 0, len(l.entries))
		for _, e := range l.entries {
			at = append(at, e.At)
		}
		slices.SortFunc(at, time.Time.Compare)
		if at[n-1].After(limit) {
			limit = at[n-1]
		}
	}
	for id, e := range l.entries {
		if !e.At.After(limit) {
			delete(l.entries, id)
			if e.At.After(l.since) {
				l.since = e.At
			}
		}
	}
}

func (l *Log) rewriteLocked() (*os.File, error) {
	temp := l.cfg.Path + ".new"
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*os.File, error) {
		f.Close()       // the first error says it
		os.Remove(temp) // best effort
		return nil, err
	}
	out := bufio.NewWriterSize(f, 64<<10)
	l.lines = 0
	for r := range l.recordsLocked() {
		line, err := r.line()
		if err != nil {
			return fail(err)
		}
		if _, err := out.Write(line); err != nil {
			return fail(err)
		}
		l.lines++
	}
	if err := out.Flush(); err != nil {
		return fail(err)
	}
	if err := f.Sync(); err != nil {
		return fail(err)
	}
	if err := os.Rename(temp, l.cfg.Path); err != nil {
		return fail(err)
	}
	return f, durable.SyncDir(l.dir())
}

func (l *Log) recordsLocked() func(yield func(record) bool) {
	return func(yield func(record) bool) {
		if !yield(record{Kind: kindHead, AtUs: l.since.UnixMicro()}) {
			return
		}
		for id, e := range l.entries {
			first := record{Kind: kindSent, Action: id, Args: e.ArgsDigest, Key: e.KeyDigest, AtUs: e.At.UnixMicro()}
			if e.State == Barred {
				first = record{Kind: kindBarred, Action: id, AtUs: e.At.UnixMicro()}
			}
			if !yield(first) {
				return
			}
			if e.State == Answered {
				if !yield(record{Kind: kindAnswered, Action: id, Status: e.Status, Body: e.BodyDigest, Failed: e.Failed, AtUs: e.At.UnixMicro()}) {
					return
				}
			}
		}
	}
}

package calllog

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"bivouac/edge/protocol"
)

func actionID() protocol.ActionID {
	return protocol.NewID[protocol.ActionKind](time.Now(), rand.Reader)
}

func open(t *testing.T, path string) *Log {
	t.Helper()
	l, err := Open(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func lookup(t *testing.T, l *Log, id protocol.ActionID) Entry {
	t.Helper()
	e, err := l.Lookup(id)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func begin(t *testing.T, l *Log, c Call) {
	t.Helper()
	if _, err := l.Begin(c); err != nil {
		t.Fatal(err)
	}
}

// INV-4: what Begin acknowledged is there after a kill at any moment after it.
func TestSentSurvivesACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.log")
	l := open(t, path)
	sent, answered := actionID(), actionID()
	begin(t, l, Call{Action: sent, ArgsDigest: "d1"})
	begin(t, l, Call{Action: answered, ArgsDigest: "d2"})
	if err := l.Answer(answered, Outcome{Status: 201, BodyDigest: "sha256:b", Failed: true}); err != nil {
		t.Fatal(err)
	}
	// No Close: a copy of the file is what a killed process leaves.
	crashed := filepath.Join(t.TempDir(), "calls.log")
	copyFile(t, path, crashed)
	again := open(t, crashed)
	if e := lookup(t, again, sent); e.State != Sent || e.ArgsDigest != "d1" {
		t.Errorf("sent: %+v", e)
	}
	if e := lookup(t, again, answered); e.State != Answered || e.Status != 201 || e.BodyDigest != "sha256:b" || !e.Failed {
		t.Errorf("answered: %+v", e)
	}
	if e := lookup(t, again, actionID()); e.State != Barred {
		t.Errorf("a stranger is there: %+v", e)
	}
	if !again.Since().Equal(l.Since()) {
		t.Errorf("since moved from %s to %s", l.Since(), again.Since())
	}
}

// INV-5: a second sending is refused; the positive twin repeats under its key.
func TestSecondSendingIsRefused(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "calls.log"))
	opaque, keyed := actionID(), actionID()
	begin(t, l, Call{Action: opaque, ArgsDigest: "d", Key: "k"})
	begin(t, l, Call{Action: keyed, ArgsDigest: "d", Key: "k", Repeatable: true})
	for name, c := range map[string]Call{
		"opaque":         {Action: opaque, ArgsDigest: "d", Key: "k"},
		"another key":    {Action: keyed, ArgsDigest: "d", Key: "k2", Repeatable: true},
		"no key":         {Action: keyed, ArgsDigest: "d", Repeatable: true},
		"other args":     {Action: keyed, ArgsDigest: "d2", Key: "k", Repeatable: true},
		"not repeatable": {Action: keyed, ArgsDigest: "d", Key: "k"},
	} {
		if _, err := l.Begin(c); protocol.CodeOf(err) != protocol.CodeOutcomeUnknown {
			t.Errorf("%s: %v", name, err)
		}
	}
	if first, err := l.Begin(Call{Action: keyed, ArgsDigest: "d", Key: "k", Repeatable: true}); err != nil || first {
		t.Errorf("the same key was refused: first=%v %v", first, err)
	}
	if err := l.Answer(opaque, Outcome{Status: 200, BodyDigest: "b"}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Begin(Call{Action: opaque, ArgsDigest: "d"}); protocol.CodeOf(err) != protocol.CodeAlreadyExists {
		t.Errorf("an answered action: %v", err)
	}
}

func TestUnsentIsAbsent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.log")
	l := open(t, path)
	id := actionID()
	begin(t, l, Call{Action: id, ArgsDigest: "d"})
	if err := l.Unsent(id); err != nil {
		t.Fatal(err)
	}
	begin(t, l, Call{Action: id, ArgsDigest: "d"})
	if e := lookup(t, l, id); e.State != Sent {
		t.Errorf("%+v", e)
	}
}

// INV-5: what was told to be absent is never sent later, over a restart too.
func TestAbsenceIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.log")
	l := open(t, path)
	told, other := actionID(), actionID()
	if e := lookup(t, l, told); e.State != Barred {
		t.Fatalf("%+v", e)
	}
	crashed := filepath.Join(t.TempDir(), "calls.log")
	copyFile(t, path, crashed)
	for _, log := range []*Log{l, open(t, crashed), open(t, crashed)} {
		if _, err := log.Begin(Call{Action: told, ArgsDigest: "d", Key: "k", Repeatable: true}); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
			t.Errorf("a late request was sent: %v", err)
		}
	}
	begin(t, l, Call{Action: other, ArgsDigest: "d"})
}

// Cutting the file at every byte loses only what the cut touched, never an
// earlier entry, and the log opens again.
func TestTornEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.log")
	l := open(t, path)
	first, second := actionID(), actionID()
	begin(t, l, Call{Action: first, ArgsDigest: "d"})
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, l, Call{Action: second, ArgsDigest: "d"})
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(whole); cut <= len(all); cut++ {
		torn := filepath.Join(t.TempDir(), "calls.log")
		if err := os.WriteFile(torn, all[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		again := open(t, torn)
		if lookup(t, again, first).State != Sent {
			t.Fatalf("cut at %d lost an acknowledged entry", cut)
		}
		if got := lookup(t, again, second).State == Sent; got != (cut == len(all)) {
			t.Fatalf("cut at %d: second entry present=%v", cut, got)
		}
		begin(t, again, Call{Action: actionID(), ArgsDigest: "d"})
		again.Close()
	}
}

// Damage that no crash explains is refused, not skipped.
func TestDamageInTheMiddle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.log")
	l := open(t, path)
	begin(t, l, Call{Action: actionID(), ArgsDigest: "d"})
	begin(t, l, Call{Action: actionID(), ArgsDigest: "d"})
	l.Close()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Path: path}); err != nil {
		t.Fatalf("a good file was refused: %v", err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Path: path}); protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("damage was accepted: %v", err)
	}
}

// The log is bounded, and what it forgot is before Since.
func TestBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.log")
	clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := func() time.Time { clock = clock.Add(time.Millisecond); return clock }
	l, err := Open(Config{Path: path, MaxEntries: 100, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var ids []protocol.ActionID
	at := map[protocol.ActionID]time.Time{}
	for range 3000 {
		id := actionID()
		begin(t, l, Call{Action: id, ArgsDigest: "d"})
		ids, at[id] = append(ids, id), clock
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 64<<10 {
		t.Errorf("the file grew to %d bytes", info.Size())
	}
	if lookup(t, l, ids[len(ids)-1]).State != Sent {
		t.Error("the newest entry is gone")
	}
	forgotten := 0
	for _, id := range ids {
		if lookup(t, l, id).State == Barred {
			forgotten++
			if at[id].After(l.Since()) {
				t.Fatalf("an entry of %s is absent, but the log says it covers everything since %s", at[id], l.Since())
			}
		}
	}
	if forgotten == 0 {
		t.Error("nothing was forgotten")
	}
}

func TestConcurrentCallsShareTheDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.log")
	l := open(t, path)
	ids := make([]protocol.ActionID, 64)
	var wg sync.WaitGroup
	for i := range ids {
		ids[i] = actionID()
		wg.Go(func() {
			if _, err := l.Begin(Call{Action: ids[i], ArgsDigest: "d"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	crashed := filepath.Join(t.TempDir(), "calls.log")
	copyFile(t, path, crashed)
	again := open(t, crashed)
	for _, id := range ids {
		if lookup(t, again, id).State != Sent {
			t.Errorf("%s is missing", id)
		}
	}
}

func TestNothingIsSentAfterClose(t *testing.T) {
	l, err := Open(Config{Path: filepath.Join(t.TempDir(), "calls.log")})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var coded *protocol.Error
	if _, err := l.Begin(Call{Action: actionID()}); !errors.As(err, &coded) || coded.Code != protocol.CodeUnavailable {
		t.Errorf("%v", err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

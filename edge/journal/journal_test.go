package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

func open(t *testing.T, dir string, o Options) *Journal {
	t.Helper()
	j, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func appendN(t *testing.T, j *Journal, n int) {
	t.Helper()
	for range n {
		want := j.Last() + 1
		seq, err := j.AppendFunc(func(seq int64) ([]byte, error) { return fmt.Appendf(nil, "record %d", seq), nil }, false)
		if err != nil || seq != want {
			t.Fatalf("append got %d, %v; want %d", seq, err, want)
		}
	}
}

func replay(t *testing.T, j *Journal, after int64) []int64 {
	t.Helper()
	var got []int64
	err := j.Replay(after, func(seq int64, record []byte) error {
		if string(record) != fmt.Sprintf("record %d", seq) {
			return fmt.Errorf("record %d is %q", seq, record)
		}
		got = append(got, seq)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func span(from, to int64) string {
	var out []int64
	for i := from; i <= to; i++ {
		out = append(out, i)
	}
	return fmt.Sprint(out)
}

func TestReplayPruneAndReopen(t *testing.T) {
	dir := t.TempDir()
	small := Options{SegmentBytes: 100}
	j := open(t, dir, small)
	appendN(t, j, 20)
	if got := replay(t, j, 0); fmt.Sprint(got) != span(1, 20) {
		t.Fatalf("replay %v", got)
	}
	if got := replay(t, j, 13); fmt.Sprint(got) != span(14, 20) {
		t.Fatalf("replay after 13: %v", got)
	}
	before := j.Bytes()
	if err := j.Prune(13); err != nil {
		t.Fatal(err)
	}
	if j.Bytes() >= before {
		t.Error("pruning gave no space back")
	}
	if got := replay(t, j, 13); fmt.Sprint(got) != span(14, 20) {
		t.Fatalf("after pruning 13: %v", got)
	}
	j.Close()
	j = open(t, dir, small)
	if got := replay(t, j, 13); fmt.Sprint(got) != span(14, 20) {
		t.Fatalf("after reopening: %v", got)
	}
	if err := j.Prune(20); err != nil {
		t.Fatal(err)
	}
	if j.Bytes() != 0 {
		t.Errorf("%d bytes are left when all is pruned", j.Bytes())
	}
	j.Close()
	j = open(t, dir, small)
	appendN(t, j, 1)
	if got := replay(t, j, 0); fmt.Sprint(got) != span(21, 21) {
		t.Errorf("sequences must go on after everything was pruned: %v", got)
	}
}

func TestBoundIsRefusedAndReserveServesResults(t *testing.T) {
	j := open(t, t.TempDir(), Options{MaxBytes: 1000, Reserve: 200, SegmentBytes: 100, StatusCommand: "bivouac-edge status --state /x"})
	var err error
	for err == nil {
		_, err = j.Append([]byte("progress"), false)
	}
	if protocol.CodeOf(err) != protocol.CodeQueueFull || !strings.Contains(err.Error(), "`bivouac-edge status --state /x`") {
		t.Fatalf("a full journal says %v", err)
	}
	if _, err := j.Append([]byte("the result"), true); err != nil {
		t.Fatalf("a durable record must still fit: %v", err)
	}
	if j.Bytes() > 1000 {
		t.Errorf("%d bytes", j.Bytes())
	}
	if err := j.Prune(j.Last()); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append([]byte("progress"), false); err != nil {
		t.Errorf("after pruning: %v", err)
	}
	if _, err := j.Append(make([]byte, MaxRecord+1), true); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("a huge record: %v", err)
	}
}

func TestFailedSyncEndsTheJournal(t *testing.T) {
	var lost error
	j := open(t, t.TempDir(), Options{SyncFunc: func(f *os.File) error { return errors.Join(lost, f.Sync()) }})
	appendN(t, j, 1)
	select {
	case <-j.Failed():
		t.Fatal("a journal that works has failed")
	default:
	}
	lost = errors.New("I/O error")
	_, err := j.Append([]byte("x"), true)
	lost = nil
	if protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Fatalf("got %v", err)
	}
	<-j.Failed()
	if j.Err() == nil {
		t.Error("it does not say why")
	}
	if _, err := j.Append([]byte("y"), true); protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("it went on after a failed sync: %v", err)
	}
}

func TestOlderSegmentMustBeWhole(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{SegmentBytes: 100})
	appendN(t, j, 9)
	j.Close()
	name := filepath.Join(dir, segment{first: 1}.name())
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range [][]byte{whole[:len(whole)-1], {}} {
		if err := os.WriteFile(name, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, Options{}); protocol.CodeOf(err) != protocol.CodeDataLoss {
			t.Errorf("with %d of %d bytes: %v", len(broken), len(whole), err)
		}
	}
	if err := os.WriteFile(name, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := replay(t, open(t, dir, Options{}), 0); fmt.Sprint(got) != span(1, 9) {
		t.Errorf("whole again: %v", got)
	}
}

// A file that is gone is as bad as one that is damaged, also right before the
// newest.
func TestSegmentMayNotVanish(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{SegmentBytes: 100})
	appendN(t, j, 9)
	var names []string
	for _, s := range j.segments {
		names = append(names, filepath.Join(dir, s.name()))
	}
	j.Close()
	for _, name := range names[1 : len(names)-1] {
		aside := name + ".aside"
		if err := os.Rename(name, aside); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, Options{}); protocol.CodeOf(err) != protocol.CodeDataLoss {
			t.Errorf("without %s: %v", name, err)
		}
		if err := os.Rename(aside, name); err != nil {
			t.Fatal(err)
		}
	}
	if got := replay(t, open(t, dir, Options{}), 0); len(names) < 3 || fmt.Sprint(got) != span(1, 9) {
		t.Errorf("%d segments, whole again: %v", len(names), got)
	}
}

func TestClosedJournalRefuses(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	appendN(t, j, 1)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(nil, false); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("got %v", err)
	}
	if err := j.Replay(0, func(int64, []byte) error { return nil }); err == nil {
		t.Error("a closed journal was read")
	}
}

package witness_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"bivouac/edge/protocol"
	"bivouac/server/broker/witness"
	"bivouac/server/ledger"
)

var tenant = protocol.NewID[protocol.TenantKind](time.Now(), rand.Reader)

// heads of one history: the tree of a word's letters.
type history struct {
	t      *testing.T
	stored []tlog.Hash
}

func newHistory(t *testing.T, word string) *history {
	h := &history{t: t}
	for i := range word {
		sum := sha256.Sum256([]byte(word[i : i+1]))
		added, err := tlog.StoredHashes(int64(i), sum[:], h)
		if err != nil {
			t.Fatal(err)
		}
		h.stored = append(h.stored, added...)
	}
	return h
}

func (h *history) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, at := range indexes {
		out[i] = h.stored[at]
	}
	return out, nil
}

func (h *history) head(size int64, epoch uint32) ledger.Head {
	h.t.Helper()
	root, err := ledger.Root(size, h.ReadHashes)
	if err != nil {
		h.t.Fatal(err)
	}
	return ledger.Head{Tenant: tenant, Size: size, Root: root, Epoch: epoch, At: time.Unix(int64(epoch), 0)}
}

func (h *history) proof(size, after int64) []ledger.Hash {
	h.t.Helper()
	p, err := ledger.ProveFollows(size, after, h.ReadHashes)
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

func open(t *testing.T, dir string) (*witness.Witness, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	w, err := witness.Open(dir, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return w, &log
}

// A broker that starts again still refuses a fork and a shorter ledger, loudly, and
// still takes what goes on. INV-8.
func TestMemoryOutlastsTheProcess(t *testing.T) {
	dir := t.TempDir()
	right, forked := newHistory(t, "abcdefghij"), newHistory(t, "abcXefghij")
	w, _ := open(t, dir)
	for _, step := range [][2]int64{{3, 0}, {5, 3}} {
		if err := w.Take(right.head(step[0], 1), step[1], right.proof(step[0], step[1])); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // a refusal changes nothing
		var log *bytes.Buffer
		w, log = open(t, dir)
		if got := w.Last(tenant); got.Size != 5 || got.Root != right.head(5, 1).Root || got.Epoch != 1 {
			t.Fatalf("after a start: %+v", got)
		}
		for name, c := range map[string]struct {
			err  error
			code protocol.Code
			says string
		}{
			"fork":    {w.Take(forked.head(8, 1), 5, forked.proof(8, 5)), protocol.CodeDataLoss, "(fork)"},
			"shorter": {w.Take(right.head(4, 1), 5, nil), protocol.CodeDataLoss, "(shorter)"},
			"stale":   {w.Take(right.head(8, 1), 3, right.proof(8, 3)), protocol.CodeConflict, "ask for the last head again"},
		} {
			if protocol.CodeOf(c.err) != c.code || !strings.Contains(c.err.Error(), c.says) {
				t.Errorf("%s: %v", name, c.err)
			}
		}
		if got := strings.Count(log.String(), "level=ERROR"); got != 2 || !strings.Contains(log.String(), "DOES NOT FOLLOW") {
			t.Errorf("%d errors logged:\n%s", got, log)
		}
	}
	if err := w.Take(right.head(5, 1), 5, nil); err != nil {
		t.Errorf("the same head again: %v", err)
	}
	if err := w.Take(right.head(8, 1), 5, right.proof(8, 5)); err != nil {
		t.Errorf("the right one: %v", err)
	}
}

// A restored ledger that lost its end waits for a person's word, and the word is for
// one life alone; one that lost nothing needs none.
func TestRestore(t *testing.T) {
	dir := t.TempDir()
	before, after := newHistory(t, "abcdef"), newHistory(t, "abcXYZ")
	w, _ := open(t, dir)
	if err := w.Take(before.head(5, 1), 0, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Take(before.head(6, 2), 5, before.proof(6, 5)); err != nil {
		t.Errorf("restored with all of it: %v", err)
	}
	restored := func(epoch uint32) error { return w.Take(after.head(4, epoch), w.Last(tenant).Size, nil) }
	if err := restored(9); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "bivouac-broker ledger accept --epoch 9") {
		t.Errorf("without a word: %v", err)
	}
	if err := witness.Accept(dir, 8); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "bivouac-broker ledger accept --epoch 9 --data "+dir) {
		t.Errorf("a word for a life that nobody has shown: %v", err)
	}
	if err := restored(8); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("another restore: %v", err)
	}
	if err := witness.Accept(dir, 8); err != nil {
		t.Fatal(err)
	}
	w, log := open(t, dir) // what was shown outlasts the process
	if err := restored(9); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("with the word for another life: %v", err)
	}
	for range 2 { // the word may be repeated
		if err := witness.Accept(dir, 9); err != nil {
			t.Fatal(err)
		}
	}
	if err := restored(9); err != nil {
		t.Fatalf("accepted: %v", err)
	}
	if !strings.Contains(log.String(), "begins anew, as was accepted") {
		t.Errorf("log:\n%s", log)
	}
	if err := w.Take(after.head(6, 9), 4, after.proof(6, 4)); err != nil {
		t.Errorf("it goes on: %v", err)
	}
	if err := w.Take(before.head(4, 9), 6, nil); protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("a second break in the same life: %v", err)
	}
	if err := w.Take(before.head(6, 2), 6, nil); protocol.CodeOf(err) != protocol.CodeStaleFence {
		t.Errorf("the server of the earlier life: %v", err)
	}
	seen, err := witness.Read(dir)
	if err != nil || len(seen) != 1 || len(seen[0].Restarts) != 1 || seen[0].Restarts[0].LostAfter != 6 || seen[0].Restarts[0].ToEpoch != 9 || len(seen[0].Waiting) != 0 {
		t.Errorf("%+v, %v", seen, err)
	}
	if err := witness.Accept(dir, 10); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "needs no word") {
		t.Errorf("where nothing waits: %v", err)
	}
}

// Servers that show one life after another fill no disk.
func TestWaitingIsBounded(t *testing.T) {
	dir := t.TempDir()
	before, after := newHistory(t, "abcdef"), newHistory(t, "abcXYZ")
	w, _ := open(t, dir)
	if err := w.Take(before.head(5, 1), 0, nil); err != nil {
		t.Fatal(err)
	}
	for epoch := range uint32(20) {
		if err := w.Take(after.head(4, epoch+2), 5, nil); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
			t.Fatal(err)
		}
	}
	seen, err := witness.Read(dir)
	if err != nil || len(seen) != 1 || len(seen[0].Waiting) != 8 || seen[0].Waiting[7].Epoch != 21 || seen[0].Waiting[7].Size != 4 {
		t.Fatalf("%+v, %v", seen, err)
	}
	if err := witness.Accept(dir, 21); err != nil {
		t.Errorf("the newest: %v", err)
	}
}

// What cannot be kept is not taken; a damaged memory is said, and not begun anew.
func TestMemoryIsNeverGuessed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "broker")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h := newHistory(t, "abc")
	w, _ := open(t, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := w.Take(h.head(2, 1), 0, nil); protocol.CodeOf(err) != protocol.CodeUnavailable || w.Last(tenant).Size != 0 {
		t.Errorf("%v, last %+v", err, w.Last(tenant))
	}
	if err := witness.Accept(dir, 3); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("accepted in a directory that is not there: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.Take(h.head(2, 1), 0, nil); err != nil {
		t.Error(err)
	}
	if err := witness.Accept(dir, 0); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("epoch zero: %v", err)
	}
	path := filepath.Join(dir, "ledger-heads.json")
	for _, bad := range []string{`[{"tenant":"`, `[{"tenant":"x","size":0}]`} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := witness.Open(dir, slog.New(slog.DiscardHandler)); protocol.CodeOf(err) != protocol.CodeDataLoss || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

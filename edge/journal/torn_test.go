package journal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"bivouac/edge/protocol"
)

// written is a journal file of records of different sizes, and what is in it.
// Records up to durable were synced before the later ones were written.
type written struct {
	file    []byte
	records [][]byte
	ends    []int64 // offset after each record
	durable int
}

func write(t *testing.T, total, durable int) written {
	t.Helper()
	dir := t.TempDir()
	j, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := written{durable: durable}
	for i := range total {
		record := bytes.Repeat([]byte{byte(i + 1)}, (i*7)%23) // an empty one too
		if _, err := j.Append(record, i+1 == durable); err != nil {
			t.Fatal(err)
		}
		w.records = append(w.records, record)
		w.ends = append(w.ends, j.Bytes())
	}
	if w.file, err = os.ReadFile(filepath.Join(dir, segment{first: 1}.name())); err != nil {
		t.Fatal(err)
	}
	j.Close()
	return w
}

// reopen puts a file image on disk and reads it back.
func reopen(t *testing.T, dir string, image []byte) (*Journal, [][]byte, error) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, segment{first: 1}.name()), image, 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := Open(dir, Options{})
	if err != nil {
		return nil, nil, err
	}
	var got [][]byte
	if err := j.Replay(0, func(seq int64, record []byte) error {
		if seq != int64(len(got)+1) {
			return fmt.Errorf("sequence %d after %d", seq, len(got))
		}
		got = append(got, bytes.Clone(record))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return j, got, nil
}

func mustBePrefix(t *testing.T, w written, got [][]byte, at int) {
	t.Helper()
	if len(got) > len(w.records) {
		t.Fatalf("at byte %d: %d records out of %d", at, len(got), len(w.records))
	}
	for i := range got {
		if !bytes.Equal(got[i], w.records[i]) {
			t.Fatalf("at byte %d: record %d changed", at, i+1)
		}
	}
}

// A file cut at any byte gives back every whole record before the cut, and goes
// on with the next sequence.
func TestCutAtEveryByte(t *testing.T) {
	w := write(t, 12, 0)
	dir := t.TempDir()
	for at := range len(w.file) + 1 {
		j, got, err := reopen(t, dir, w.file[:at])
		if err != nil {
			t.Fatalf("cut at %d: %v", at, err)
		}
		mustBePrefix(t, w, got, at)
		whole := 0
		for whole < len(w.ends) && w.ends[whole] <= int64(at) {
			whole++
		}
		if len(got) != whole {
			t.Fatalf("cut at %d: %d records, want %d", at, len(got), whole)
		}
		seq, err := j.Append([]byte("after"), true)
		if err != nil || seq != int64(whole+1) {
			t.Fatalf("cut at %d: the next append got %d, %v", at, seq, err)
		}
		j.Close()
		again, got, err := reopen(t, dir, read(t, dir))
		if err != nil || len(got) != whole+1 || string(got[whole]) != "after" {
			t.Fatalf("cut at %d: reopened with %d records, %v", at, len(got), err)
		}
		again.Close()
	}
}

func read(t *testing.T, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, segment{first: 1}.name()))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// One flipped bit never gives back other bytes than were appended, and never
// hides a record that had been durable: that is data_loss.
func TestFlipEveryBit(t *testing.T) {
	w := write(t, 12, 8)
	dir := t.TempDir()
	lost, cut := 0, 0
	for at := range w.file {
		for bit := range 8 {
			image := bytes.Clone(w.file)
			image[at] ^= 1 << bit
			j, got, err := reopen(t, dir, image)
			if err != nil {
				if protocol.CodeOf(err) != protocol.CodeDataLoss {
					t.Fatalf("flip at %d: %v", at, err)
				}
				lost++
				continue
			}
			j.Close()
			cut++
			mustBePrefix(t, w, got, at)
			if len(got) < w.durable {
				t.Fatalf("flip at %d bit %d: only %d records and no error, %d were durable", at, bit, len(got), w.durable)
			}
		}
	}
	if lost == 0 || cut == 0 {
		t.Errorf("the test did not reach both ends: %d lost, %d cut", lost, cut)
	}
}

// Unsynced pages may reach the disk in any order: every subset of the records
// after the last sync, as zeros, is a torn tail and not damage.
func TestUnsyncedRecordsMayVanishInAnyOrder(t *testing.T) {
	w := write(t, 12, 6)
	dir := t.TempDir()
	for vanished := 1; vanished < 1<<6; vanished++ {
		image := bytes.Clone(w.file)
		first := -1
		for i := range 6 {
			if vanished&(1<<i) == 0 {
				continue
			}
			record := 6 + i
			clear(image[w.ends[record-1]:w.ends[record]])
			if first < 0 {
				first = record
			}
		}
		j, got, err := reopen(t, dir, image)
		if err != nil {
			t.Fatalf("vanished %06b: %v", vanished, err)
		}
		j.Close()
		mustBePrefix(t, w, got, vanished)
		if len(got) != first {
			t.Fatalf("vanished %06b: %d records, want %d", vanished, len(got), first)
		}
	}
}

// The same with one durable record gone is damage: the positive twin.
func TestDurableRecordMayNotVanish(t *testing.T) {
	w := write(t, 12, 6)
	for record := range 6 {
		image := bytes.Clone(w.file)
		from := int64(0)
		if record > 0 {
			from = w.ends[record-1]
		}
		clear(image[from:w.ends[record]])
		if _, _, err := reopen(t, t.TempDir(), image); protocol.CodeOf(err) != protocol.CodeDataLoss {
			t.Errorf("record %d vanished: %v", record+1, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte{})
	f.Add(frame{seq: 1, payload: []byte("x")}.encode())
	f.Fuzz(func(t *testing.T, image []byte) {
		j, got, err := reopen(t, t.TempDir(), image)
		if err != nil {
			return
		}
		defer j.Close()
		if seq, err := j.Append(nil, false); err != nil || seq != int64(len(got)+1) {
			t.Fatalf("next append got %d, %v after %d records", seq, err, len(got))
		}
	})
}

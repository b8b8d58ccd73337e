package budget

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
)

const other = protocol.SliceID("slc_01jdv3k8x0q6v9w2m4t7y5z1ac")

// disk is a directory on which ledgers are opened and killed.
type disk struct {
	t    *testing.T
	path string
	host string
	now  time.Time
}

func newDisk(t *testing.T) *disk {
	return &disk{t: t, path: filepath.Join(t.TempDir(), "slices.log"), host: "kernel-1", now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

// boot opens the ledger; one that was open before was killed.
func (d *disk) boot(nonce string) *Ledger {
	d.t.Helper()
	l, err := Open(Config{Boot: nonce, Path: d.path, Host: d.host, Elapsed: func() time.Duration { return 0 }, Now: func() time.Time { return d.now }})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		if err := l.Stop(); err != nil {
			d.t.Error(err)
		}
	})
	return l
}

func hold(t *testing.T, l *Ledger, s Slice, amount int64) *Hold {
	t.Helper()
	h, err := l.Reserve(s, amount)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// INV-19: of a boot that was killed the next one knows what it can have spent at
// most: what was settled, and the whole of what was in flight.
func TestKilledBootIsBounded(t *testing.T) {
	d := newDisk(t)
	first := d.boot("boot-1")
	s := Slice{ID: slice, Boot: "boot-1", Ceiling: 1000}
	hold(t, first, s, 300).Settle(40, Tokens{4, 5})
	hold(t, first, s, 70)

	second := d.boot("boot-2")
	if got := second.Usage(slice, other); got[0].Drawn != 110 || got[0].Input != 4 || got[1].Drawn != 0 {
		t.Errorf("after the first kill: %+v", got)
	}
	if got := second.Boots(); !slices.Equal(got, []string{"boot-1"}) {
		t.Errorf("it knows of %v", got)
	}
	if _, err := second.Reserve(s, 1); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("a slice of the first boot was drawn: %v", err)
	}
	s2 := Slice{ID: other, Boot: "boot-2", Ceiling: 1000}
	hold(t, second, s2, 5).Settle(5, Tokens{})

	d.now = d.now.Add(time.Hour)
	third := d.boot("boot-3")
	if got := third.Usage(slice, other); got[0].Drawn != 110 || got[1].Drawn != 5 {
		t.Errorf("after the second kill: %+v", got)
	}
	if got := third.Boots(); !slices.Equal(got, []string{"boot-2", "boot-1"}) {
		t.Errorf("it knows of %v", got)
	}
	d.now = d.now.Add(pastTTL)
	if got := d.boot("boot-4").Boots(); !slices.Equal(got, []string{"boot-3", "boot-2"}) {
		t.Errorf("a week later it knows of %v", got)
	}
}

// Notes that cannot be believed are not: after the fall of the machine, and when
// somebody changed the file. Then the server counts whole slices.
func TestNotesThatAreNotBelieved(t *testing.T) {
	lay := func(t *testing.T) *disk {
		d := newDisk(t)
		hold(t, d.boot("boot-1"), Slice{ID: slice, Boot: "boot-1", Ceiling: 1000}, 300).Settle(40, Tokens{})
		return d
	}
	rewrite := func(t *testing.T, d *disk, change func(string) string) {
		b, err := os.ReadFile(d.path)
		if err == nil {
			err = os.WriteFile(d.path, []byte(change(string(b))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		harm  func(t *testing.T, d *disk)
		boots int
		drawn int64
	}{
		"whole":          {func(*testing.T, *disk) {}, 1, 40},
		"machine fell":   {func(_ *testing.T, d *disk) { d.host = "kernel-2" }, 0, 0},
		"kernel unknown": {func(_ *testing.T, d *disk) { d.host = "" }, 0, 0},
		"damaged": {func(t *testing.T, d *disk) {
			rewrite(t, d, func(s string) string { return strings.Replace(s, "hold", "ho\"ld", 1) })
		}, 0, 0},
		"torn": {func(t *testing.T, d *disk) { rewrite(t, d, func(s string) string { return s[:len(s)-4] }) }, 1, 300},
		"gone": {func(t *testing.T, d *disk) { os.Remove(d.path) }, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := lay(t)
			c.harm(t, d)
			l := d.boot("boot-2")
			if got := l.Usage(slice)[0].Drawn; len(l.Boots()) != c.boots || got != c.drawn {
				t.Errorf("boots %v, drawn %d; want %d and %d", l.Boots(), got, c.boots, c.drawn)
			}
		})
	}
}

// The file is rewritten when most of it says nothing any more, with calls in
// flight, and nothing is forgotten.
func TestNotesAreRewritten(t *testing.T) {
	d := newDisk(t)
	l := d.boot("boot-1")
	s := Slice{ID: slice, Boot: "boot-1", Ceiling: 1 << 40}
	hold(t, l, s, 7) // in flight all the time
	for range rewriteAt {
		hold(t, l, s, 3).Settle(2, Tokens{1, 1})
	}
	fi, err := os.Stat(d.path)
	if err != nil {
		t.Fatal(err)
	}
	if most := int64(rewriteAt * 70); fi.Size() > most {
		t.Errorf("the file has %d bytes", fi.Size())
	}
	if got, want := d.boot("boot-2").Usage(slice)[0], int64(2*rewriteAt+7); got.Drawn != want || got.Input != rewriteAt {
		t.Errorf("%+v, want %d drawn", got, want)
	}
}

// A call whose reservation cannot be noted does not leave.
func TestUnnotedCallDoesNotLeave(t *testing.T) {
	d := newDisk(t)
	l := d.boot("boot-1")
	s := Slice{ID: slice, Boot: "boot-1", Ceiling: 1000}
	open := hold(t, l, s, 10)
	l.notes.file.Close()
	open.Settle(4, Tokens{})
	if _, err := l.Reserve(s, 1); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Fatalf("without notes: %v", err)
	}
	file, err := os.OpenFile(d.path, os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	l.notes.file = file
	hold(t, l, s, 1).Settle(1, Tokens{})
	if got := d.boot("boot-2").Usage(slice)[0].Drawn; got != 5 { // what was owed is noted first
		t.Errorf("drawn %d", got)
	}
}

package finding

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestReport(t *testing.T) {
	r := From("edge")
	if r.Worst() != OK || r.ExitCode(true) != 0 {
		t.Error("nothing was found, and it is bad")
	}
	r.Fine("git", "version %d", 2)
	r.Warn("udp", "eaten\nby a firewall", "slower", "open port 7401")
	if r.Worst() != Warning || r.ExitCode(false) != 0 || r.ExitCode(true) == 0 {
		t.Errorf("a warning: %s, exit %d and %d", r.Worst(), r.ExitCode(false), r.ExitCode(true))
	}
	if r.Err("state", nil, "", "") || !r.Err("state", errors.New("gone"), "needed", "join") {
		t.Error("Err tells no error from one")
	}
	r.Add(Finding{Where: "server", Check: "database", Level: OK, What: "answers"})
	if r.Worst() != Problem || r.ExitCode(false) == 0 {
		t.Errorf("a problem: %s, exit %d", r.Worst(), r.ExitCode(false))
	}
	var b bytes.Buffer
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"seen from this machine's runner\n", "  ok      git                version 2\n", "mend  open port 7401\n",
		"  PROBLEM state              gone\n         why   needed\n         mend  join\n", "seen from the server\n", "4 checked, 1 problem(s), 1 warning(s)\n", "eaten\n               by"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, b.String())
		}
	}
	b.Reset()
	if err := From("here").JSON(&b); err != nil || b.String() != `{"worst":"ok","findings":[]}`+"\n" {
		t.Errorf("an empty report: %v, %s", err, b.String())
	}
	defer func() {
		if recover() == nil {
			t.Error("a problem without a mend was taken")
		}
	}()
	r.Bad("x", "broken", "", "")
}

func TestDisk(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "journal"), make([]byte, 10<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		free  uint64
		since time.Time
		err   error
		level Level
		what  string
	}{
		"roomy":                 {200 << 30, time.Time{}, nil, OK, "200 GiB of 400 GiB free"},
		"roomy, and it grows":   {20 << 30, time.Now().Add(-2 * time.Hour), nil, OK, "full in about 171 days"},
		"soon":                  {2 << 30, time.Now().Add(-2 * time.Hour), nil, OK, "full in about 17 days"},
		"within a week":         {1200 << 20, time.Now().Add(-time.Hour), nil, Warning, "full in about 5 days"},
		"low":                   {900 << 20, time.Time{}, nil, Warning, "900.0 MiB"},
		"empty":                 {1 << 20, time.Time{}, nil, Problem, "1.0 MiB"},
		"it cannot be measured": {0, time.Time{}, errors.New("no such device"), Warning, "no such device"},
	} {
		r := From("edge")
		r.Disk(Disk{Path: dir, Holds: "things", Since: c.since, Low: "then no cake is baked", Mend: "du", FreeFunc: func(string) (uint64, uint64, error) { return c.free, 400 << 30, c.err }})
		if f := r.All[0]; f.Level != c.level || !strings.Contains(f.What, c.what) || c.err == nil && strings.Contains(f.Why, "no cake") != (c.level != OK) {
			t.Errorf("%s: %+v", name, f)
		}
	}
	r := From("edge")
	r.Disk(Disk{Path: dir, Holds: "things", Mend: "du"})
	if f := r.All[0]; !strings.Contains(f.What, "holds 10.0 MiB") {
		t.Errorf("the system's own measure: %+v", f)
	}
}

//go:build linux

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac/test/e2e/stack"
	"bivouac/test/secretscan"
)

// evidence is all that anybody beside broker and upstream was shown, by where.
type evidence struct {
	t    *testing.T
	mu   sync.Mutex // guards below
	seen map[string][]byte
}

func newEvidence(t *testing.T) *evidence { return &evidence{t: t, seen: map[string][]byte{}} }

// note adds what somebody saw at a place.
func (e *evidence) note(where string, b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen[where] = append(append(e.seen[where], b...), '\n')
}

// size of what was noted at a place.
func (e *evidence) size(where string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.seen[where])
}

func (e *evidence) search(s *secretscan.Scanner) (hits []secretscan.Hit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, where := range slices.Sorted(maps.Keys(e.seen)) {
		hits = append(hits, searched(s, where, e.seen[where])...)
	}
	return hits
}

// searched is a text as it is, and, where it has private keys, without the line ends that
// they are written with.
func searched(s *secretscan.Scanner, where string, b []byte) []secretscan.Hit {
	hits := s.Bytes(where, b)
	if bytes.Contains(b, []byte("PRIVATE KEY")) {
		hits = append(hits, s.Bytes(where, []byte(strings.NewReplacer("\\n", "", "\\r", "", "\n", "", "\r", "").Replace(string(b))))...)
	}
	return hits
}

// watch notes arguments and environment of every process of a stack, until the
// returned function is called.
func (e *evidence) watch(s *stack.Stack) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		known := map[string]bool{}
		for ctx.Err() == nil {
			all, err := s.Running()
			if err != nil {
				e.t.Error(err)
				return
			}
			for _, r := range all {
				e.process(r, known)
			}
			pause(ctx, 20*time.Millisecond)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// process notes what one was started with, once for each program that it ran.
func (e *evidence) process(r stack.Running, known map[string]bool) {
	id := fmt.Sprint(r.PID, " ", r.Started, " ", r.Line)
	if known[id] {
		return
	}
	known[id] = true
	for _, what := range []string{"cmdline", "environ"} {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", r.PID, what)); err == nil { // it may be gone
			e.note(what+" of processes", b)
		}
	}
}

// rightful are the files of a deployment that hold a credential because they must:
// what its owner keeps, and what the broker logs in and opens its keyring with.
var rightful = []string{"secrets/", "broker/secret-id", "broker/keyring.key"}

// files are all files of a deployment but the rightful ones, searched; and no process
// left its memory anywhere.
func (e *evidence) files(root string, s *secretscan.Scanner) (hits []secretscan.Hit, size int64) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // the deployment runs, and removes what it needs no more
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name := strings.TrimPrefix(path, root+"/")
		if slices.ContainsFunc(rightful, func(r string) bool { return strings.HasPrefix(name, r) }) || strings.HasSuffix(name, "login.json") {
			return nil
		}
		hits = append(hits, s.Bytes("the name of "+name, []byte(name))...)
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if len(b) > 18 && string(b[:4]) == "\x7fELF" && b[16] == elfCore {
			e.t.Errorf("%s is the memory of a process", name)
		}
		size += int64(len(b))
		hits = append(hits, searched(s, name, b)...)
		return err
	})
	if err != nil {
		e.t.Error(err)
	}
	return hits, size
}

// elfCore is the type of a core file (ET_CORE).
const elfCore = 4

// rest notes what the parts of the deployment say of themselves and of what happened.
func (x *hostile) rest(turns ...string) {
	x.t.Helper()
	pages, err := x.Numbers(x.t.Context())
	if err != nil {
		x.t.Error(err)
	}
	for name, b := range pages {
		x.evidence.note("numbers of "+name, b)
	}
	for _, r := range x.Received() {
		x.evidence.note("conversations with the model", r.Body)
		x.evidence.note("conversations with the model, as it reads them", []byte(conversation(x.t, r.Body)))
	}
	x.evidence.note("the attacker's listener", []byte(x.loot.text()))
	x.traces.mu.Lock()
	x.evidence.note("traces", x.traces.got)
	x.traces.mu.Unlock()
	for _, args := range [][]string{{"grant", "list"}, {"credential", "list"}, {"agents", "list"}, {"tools", "effective", "--agent", "thief"}, {"mcp", "tools", "tickets"},
		{"mcp", "tools", "tickets", "--words"}, {"doctor"}, {"debt"}, {"sessions"}, {"turns"}, {"edge", "list"}, {"approvals"}, {"unknown"}, {"ledger", "show"}, {"quota"}, {"whoami"},
		{"ledger", "export", "--out", x.Path("record.ledger")}, {"grant", "show", "grt_01aaaaaaaaaaaaaaaaaaaaaaaa"}, {"explain", "trn_01aaaaaaaaaaaaaaaaaaaaaaaa"},
		{"credential", "set", "mirror-db", "--file", x.Path("home", "thief.hcl")}, {"mcp", "tools", "mirror"}, {"grant", "create", "--agent", "thief", "--credential", "nothing"}} {
		x.says(args...)
		x.says(append([]string{"--json"}, args...)...)
	}
	for _, turn := range turns {
		for _, args := range [][]string{{"turns", turn}, {"explain", turn}, {"events", turn}} {
			x.says(args...)
			x.says(append([]string{"--json"}, args...)...)
		}
	}
	for _, args := range [][]string{{"bivouac-broker", "doctor", "--data", x.Path("broker")}, {"bivouac-server", "doctor", "--data", x.Path("server")}} {
		out, err := x.Run(x.t.Context(), args[0], args[1:]...)
		x.evidence.note("the command line", fmt.Appendf(nil, "%v\n%s\n%v", args, out, err))
	}
}

// says notes all that a command of the person prints, also where it fails.
func (x *hostile) says(args ...string) {
	out, err := x.cli(args...)
	x.evidence.note("the command line", fmt.Appendf(nil, "%v\n%s\n%v", args, out, err))
}

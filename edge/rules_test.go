package edge

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/device"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// save writes edge.hcl as its owner does, and lets the daemon look.
func (m *machine) save(p owner.Policy, text ...string) {
	m.t.Helper()
	src := owner.Render(p)
	if len(text) > 0 {
		src = []byte(text[0])
	}
	if err := os.WriteFile(m.dir.Policy(), src, 0o600); err != nil {
		m.t.Fatal(err)
	}
	time.Sleep(2 * rulesEvery)
}

// A changed edge.hcl is in force at once and announced; one with mistakes changes
// nothing and is told; no file allows nothing. INV-10.
func TestChangedRulesAreInForce(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		p := m.daemon.rules.Load().policy
		offered := func() []string { return get(f, func() []string { return f.facts.GetActions() }) }
		if got := offered(); !slices.Contains(got, device.Write) {
			t.Fatalf("offered %v", got)
		}
		readOnly := p
		readOnly.Slots = 3
		readOnly.Folders = []device.Folder{{Name: "notes", Path: m.notes, Actions: []string{device.List, device.Read}}}
		m.save(readOnly)
		if got := offered(); slices.Contains(got, device.Write) || !slices.Contains(got, device.Read) {
			t.Errorf("after the change the server is told %v", got)
		}
		if got := get(f, func() int32 { return f.facts.GetSlots() }); got != 3 {
			t.Errorf("%d slots", got)
		}
		m.save(p, "slots = \"many\"\nfolder {")
		s := m.daemon.Status()
		if !strings.Contains(s.PolicyProblem, "edge.hcl:") || s.Slots != 3 || !slices.Contains(s.Actions, device.Read) {
			t.Errorf("with mistakes: problem %q, %d slots, %v", s.PolicyProblem, s.Slots, s.Actions)
		}
		m.save(p)
		if s := m.daemon.Status(); s.PolicyProblem != "" || !slices.Contains(s.Actions, device.Write) {
			t.Errorf("mended: problem %q, %v", s.PolicyProblem, s.Actions)
		}
	})
}

// A lost edge.hcl takes nothing back and no second key away: the last good one stays in
// force, also over a new start and when its copy is lost under the daemon, and status
// says what brings it back. A machine that never had one is fine. INV-10.
func TestLostRulesStayInForce(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		p := m.daemon.rules.Load().policy
		p.SecondKeys = []owner.SecondKey{{Over: device.Write, TTL: time.Hour}}
		m.save(p)
		stays := func(when string) {
			t.Helper()
			s := m.daemon.Status()
			if !slices.Contains(s.Actions, device.Write) || len(s.SecondKeys) != 1 {
				t.Errorf("%s: actions %v, second keys %v", when, s.Actions, s.SecondKeys)
			}
			if !strings.Contains(s.PolicyProblem, "edge.hcl is missing") || !strings.Contains(s.PolicyProblem, "cp "+m.dir.GoodPolicy()+" "+m.dir.Policy()) {
				t.Errorf("%s: problem %q", when, s.PolicyProblem)
			}
		}
		remove := func(file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		remove(m.dir.Policy())
		time.Sleep(2 * rulesEvery)
		stays("running")
		remove(m.dir.GoodPolicy())
		time.Sleep(3 * rulesEvery)
		stays("without the copy")
		if err := m.stop(); err != nil {
			t.Fatal(err)
		}
		m.run()
		m.connected()
		stays("started anew")
		m.save(p)
		if s := m.daemon.Status(); s.PolicyProblem != "" || len(s.SecondKeys) != 1 {
			t.Errorf("brought back: problem %q, second keys %v", s.PolicyProblem, s.SecondKeys)
		}
	})
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		if err := os.Remove(m.dir.Policy()); err != nil {
			t.Fatal(err)
		}
		m.run()
		m.connected()
		if s := m.daemon.Status(); s.PolicyProblem != "" || len(s.Actions) != 0 || int(s.Slots) != owner.Default().Slots {
			t.Errorf("a machine without a file: problem %q, actions %v, %d slots", s.PolicyProblem, s.Actions, s.Slots)
		}
	})
}

// What was taken back between the start of an action and its effect is not done; a
// change of something else does not matter. INV-10.
func TestRulesAreAskedRightBeforeTheEffect(t *testing.T) {
	notes, other := t.TempDir(), t.TempDir()
	at := func(path string, actions ...string) *rules {
		d, err := device.New([]device.Folder{{Name: "notes", Path: path, Actions: actions}, {Name: "more", Path: other, Actions: actions}})
		if err != nil {
			t.Fatal(err)
		}
		return &rules{device: d}
	}
	work := &runnerv1.DeviceWork{Action: device.Write, Arguments: `{"path":"notes/a.txt","content":"x"}`}
	before := at(notes, device.Read, device.Write)
	for name, c := range map[string]struct {
		now  *rules
		code protocol.Code
	}{
		"the same":        {before, ""},
		"as good":         {at(notes, device.Write), ""},
		"writing is over": {at(notes, device.Read), protocol.CodePermissionDenied},
		"another place":   {at(other, device.Write), protocol.CodePermissionDenied},
	} {
		if err := before.still(c.now, work); c.code == "" && err != nil || c.code != "" && protocol.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
		var wrote bool
		r := before.device.Do(t.Context(), work, func() error { return before.still(c.now, work) })
		if _, err := os.Stat(filepath.Join(notes, "a.txt")); err == nil {
			wrote = true
			os.Remove(filepath.Join(notes, "a.txt"))
		}
		if wrote != (c.code == "") || wrote != (r.GetStatus() == device.Succeeded) {
			t.Errorf("%s: written %v, %v", name, wrote, r)
		}
	}
}

// A toolchain that is taken away ends the turns that see it; one that is added ends
// none.
func TestToolchainTakenAwayEndsTurns(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		p := m.daemon.rules.Load().policy
		_, w := m.begun(&runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{}}})
		with := p
		with.Toolchains = []owner.Toolchain{{Name: "go", Path: "/usr/share"}}
		m.save(with)
		if why := m.daemon.Status().PolicyProblem; why != "" {
			t.Fatal(why)
		}
		if w.see(func() bool { return w.stopped != "" }) {
			t.Fatal("a toolchain that was added ended a turn")
		}
		m.save(p)
		if !w.see(func() bool { return strings.Contains(w.stopped, "toolchain go") }) {
			t.Error("the turn still sees the toolchain")
		}
		m.await("the end of the turn", 2*stopTimeout, func() bool { return m.daemon.turns.stopping() == 0 })
	})
}

// Where the owner refuses packages, turns that name registries are declined with his
// word, those that run are ended when he says so, and others go on. INV-10.
func TestOwnerRefusesPackages(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		p := m.daemon.rules.Load().policy
		p.Slots = 3
		m.save(p)
		with := &runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{Egress: []*runnerv1.Egress{{Name: "modules", Protocol: "go"}}}}}
		without := &runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: &runnerv1.TurnWork{}}}
		_, reading := m.begun(with)
		_, other := m.begun(without)
		if get(f, func() bool { return f.facts.GetRefusesEgress() }) {
			t.Error("it refuses before its owner does")
		}
		refusing := p
		refusing.RefuseEgress = true
		m.save(refusing)
		if why := m.daemon.Status().PolicyProblem; why != "" || !m.daemon.Status().RefusesEgress || !get(f, func() bool { return f.facts.GetRefusesEgress() }) {
			t.Fatalf("problem %q, status %v", why, m.daemon.Status().RefusesEgress)
		}
		if !reading.see(func() bool { return strings.Contains(reading.stopped, "no sandbox read packages") }) {
			t.Error("the turn with a registry goes on")
		}
		if other.see(func() bool { return other.stopped != "" }) {
			t.Error("the turn without one was ended")
		}
		m.await("the end of the turn", 2*stopTimeout, func() bool { return m.daemon.turns.stopping() == 0 })
		declined := newAttempt()
		f.offer(declined, protocol.KindTurn, with)
		m.await("the decline", 10*time.Second, func() bool { return get(f, func() bool { return f.declined[declined.String()] != "" }) })
		if got := get(f, func() string { return f.declined[declined.String()] }); !strings.Contains(got, "package_egress") {
			t.Errorf("declined with %q", got)
		}
		m.begun(without)
		m.save(p)
		m.begun(with)
	})
}

// The file is noticed at once where the system tells of changes: written in place,
// replaced by an editor, removed.
func TestWatchFileTells(t *testing.T) {
	file := filepath.Join(t.TempDir(), "edge.hcl")
	told := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return WatchFile(ctx, file, func() { told <- struct{}{} }) })
	wait := func(what string) {
		t.Helper()
		select {
		case <-told:
		case <-time.After(10 * time.Second):
			t.Fatalf("nothing was told: %s", what)
		}
	}
	wait("it watches")
	for _, change := range []func() error{
		func() error { return os.WriteFile(file, []byte("slots = 1\n"), 0o600) },
		func() error {
			if err := os.WriteFile(file+".new", []byte("slots = 2\n"), 0o600); err != nil {
				return err
			}
			return os.Rename(file+".new", file)
		},
		func() error { return os.Remove(file) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		wait("a change")
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

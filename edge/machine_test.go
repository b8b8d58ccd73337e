package edge

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/device"
	"bivouac/edge/durable"
	"bivouac/edge/edgetest"
	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/lease/leasetest"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/sandbox"
	"bivouac/edge/state"
)

// machine is one runner that has joined the fake server, with a folder "notes".
type machine struct {
	t      *testing.T
	server *fakeServer
	dir    *state.Dir
	notes  string
	twins  *twins
	stop   func() error
	daemon *Daemon
	cfg    Config
}

// provedSandbox is a backend that was seen to work; supervisors own its use.
type provedSandbox struct{ sandbox.Backend }

func (provedSandbox) Probe(context.Context) sandbox.Report {
	return sandbox.Report{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsCgroup}
}

func (provedSandbox) Tidy(context.Context) error { return nil }

func (provedSandbox) Sweep(context.Context, []string) ([]string, error) { return nil, nil }

// enrolled writes the state directory of a runner that has joined.
func enrolled(t *testing.T, f *fakeServer) *machine {
	t.Helper()
	base := t.TempDir()
	dir, err := state.Create(filepath.Join(base, "state"))
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, server: f, dir: dir, notes: filepath.Join(base, "notes"), twins: newTwins(t)}
	if err := os.Mkdir(m.notes, 0o755); err != nil {
		t.Fatal(err)
	}
	key, err := dir.Key(true)
	if err != nil {
		t.Fatal(err)
	}
	id := identitytest.RunnerID(key)
	policy := owner.Policy{Slots: 1, Folders: []device.Folder{{Name: "notes", Path: m.notes, Actions: []string{device.List, device.Read, device.Write}}}}
	for _, err := range []error{
		dir.SaveRoot(f.root.Certificate),
		dir.SaveCertificate(identitytest.PEM(f.root.Certify(key, identity.RoleRunner, id.String(), testTenant, time.Now().Add(-time.Minute), time.Now().Add(testLife-time.Minute)).Leaf)),
		durable.Replace(dir.Policy(), owner.Render(policy), 0o600),
		dir.SaveEnrolment(state.Enrolment{Server: testServer, Broker: "10.0.0.9:7402", Name: "desk", Runner: id, Tenant: testTenant}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	m.cfg = Config{
		State: dir, Network: f.net.Network("10.0.0.2"), Elapsed: leasetest.Monotonic(), Sandbox: provedSandbox{},
		Adapters: []string{"native"}, Supervisors: edgetest.InProcess(m.twins.start, m.twins.kill), Version: "test",
		FreeFunc: func(string) (int64, error) { return 2 * leastFree, nil }, // whatever the disk under the test has
	}
	if testing.Verbose() {
		m.cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return m
}

// run starts a daemon; stop ends it and returns what Run said.
func (m *machine) run() {
	m.t.Helper()
	d, err := New(m.cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	m.daemon = d
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return d.Run(ctx) })
	m.stop = sync.OnceValue(func() error { cancel(); return g.Wait() })
	m.t.Cleanup(func() { _ = m.stop() })
}

// await lets virtual time pass until ok, at most for limit.
func (m *machine) await(what string, limit time.Duration, ok func() bool) {
	m.t.Helper()
	for start := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > limit {
			m.t.Fatalf("after %v: %s has not happened; status %+v", limit, what, m.daemon.Status())
		}
		synctest.Wait()
	}
}

func (m *machine) connected() {
	m.t.Helper()
	m.await("a connection", time.Minute, func() bool { return m.daemon.Status().Connected })
}

func newAttempt() protocol.AttemptID {
	return protocol.NewID[protocol.AttemptKind](time.Now(), rand.Reader)
}

func deviceWork(action string, args map[string]any) *runnerv1.Work {
	text, err := canonical.Marshal(args)
	if err != nil {
		panic(err)
	}
	return &runnerv1.Work{Kind: &runnerv1.Work_Device{Device: &runnerv1.DeviceWork{
		ActionId: "act_1", Action: action, Arguments: string(text), ArgumentsDigest: canonical.Digest(text),
	}}}
}

func (m *machine) write(name, text string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.notes, name), []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) read(name string) string {
	b, _ := os.ReadFile(filepath.Join(m.notes, name))
	return string(b)
}

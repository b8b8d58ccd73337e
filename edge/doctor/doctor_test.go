package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge"
	"bivouac/edge/device"
	"bivouac/edge/durable"
	"bivouac/edge/finding"
	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/link"
	"bivouac/edge/link/linktest"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/runnerv1/runnerv1connect"
	"bivouac/edge/sandbox"
	"bivouac/edge/state"
)

const (
	serverAddr = "10.0.0.1:7401"
	brokerAddr = "10.0.0.1:7402"
)

// seen is a backend that was seen to do what the report says.
type seen struct {
	sandbox.Backend
	report sandbox.Report
}

func (s seen) Probe(context.Context) sandbox.Report { return s.report }

// body is a healthy runner, its server and its broker, for one bubble.
type body struct {
	t      *testing.T
	net    *linktest.Net
	root   *identitytest.Root
	dir    *state.Dir
	notes  string
	cfg    Config
	stop   map[string]func()
	says   error // what the server says to a runner that it was asked about
	status edge.Status
	asked  error
}

func healthy(t *testing.T) *body {
	t.Helper()
	base := t.TempDir()
	b := &body{t: t, net: linktest.New(time.Millisecond), root: identitytest.NewRoot(), notes: filepath.Join(base, "notes"), stop: map[string]func(){},
		says:   protocol.Errorf(protocol.CodeStaleFence, "connection epoch 0 is not the current one"),
		status: edge.Status{Connected: true, Transport: link.HTTP3, Epoch: 3, Limits: protocol.LimitsCgroup}}
	t.Cleanup(func() { b.net.Close() })
	var err error
	b.dir, err = state.Create(filepath.Join(base, "state"))
	b.must(err)
	key, err := b.dir.Key(true)
	b.must(err)
	id := identitytest.RunnerID(key)
	worker := filepath.Join(base, "bivouac-worker")
	b.must(os.WriteFile(worker, []byte("#!"), 0o755))
	b.must(os.Mkdir(b.notes, 0o755))
	b.must(os.Mkdir(b.dir.Journal(), 0o700))
	b.must(b.dir.SaveRoot(b.root.Certificate))
	b.certificate(time.Now().Add(23 * time.Hour))
	b.must(b.dir.SaveEnrolment(state.Enrolment{Server: serverAddr, Broker: brokerAddr, Runner: id}))
	b.must(durable.Replace(b.dir.Policy(), owner.Render(owner.Policy{Slots: 1,
		Folders:    []device.Folder{{Name: "notes", Path: b.notes, Actions: []string{device.List}}},
		Toolchains: []owner.Toolchain{{Name: "usr", Path: "/usr"}}}), 0o600))
	b.serve("server", serverAddr, identity.RoleServer)
	b.serve("broker", brokerAddr, identity.RoleBroker)
	b.cfg = Config{
		State: b.dir.Path(), Worker: worker, Network: b.net.Network("10.0.0.2"),
		Sandbox:    seen{report: sandbox.Report{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsCgroup, Disk: sandbox.DiskWatched, Freezer: "v2"}},
		FreeFunc:   func(string) (uint64, uint64, error) { return 100 << 30, 200 << 30, nil },
		StatusFunc: func(context.Context, *state.Dir) (edge.Status, error) { return b.status, b.asked },
	}
	return b
}

func (b *body) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *body) certificate(until time.Time) {
	b.t.Helper()
	key, err := b.dir.Key(false)
	b.must(err)
	leaf := b.root.Certify(key, identity.RoleRunner, identitytest.RunnerID(key).String(), "ten_00000000000000000000000000", time.Now().Add(-24*time.Hour), until).Leaf
	b.must(b.dir.SaveCertificate(identitytest.PEM(leaf)))
}

func (b *body) serve(name, address string, role identity.Role) {
	b.t.Helper()
	cert := b.root.Certify(identitytest.NewKey(), role, "x", "", time.Now().Add(-time.Hour), time.Now().Add(time.Hour*24))
	packets, listener, err := b.net.Listen(address)
	b.must(err)
	_, handler := runnerv1connect.NewRunnerServiceHandler(knower{b: b})
	s, err := link.NewServer(link.ServerConfig{Handler: handler, Root: b.root.Certificate, Grace: time.Second,
		Certificate: func() (*tls.Certificate, error) { return cert, nil }})
	b.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return s.Serve(ctx, packets, listener) })
	once := false
	b.stop[name] = func() {
		if !once {
			once = true
			cancel()
			if err := g.Wait(); err != nil {
				b.t.Error(err)
			}
		}
	}
	b.t.Cleanup(b.stop[name])
}

// knower is a server that is asked whether it knows a runner.
type knower struct {
	runnerv1connect.UnimplementedRunnerServiceHandler
	b *body
}

func (k knower) Renew(context.Context, *runnerv1.RenewRequest) (*runnerv1.RenewResponse, error) {
	return nil, protocol.ToConnect(k.b.says)
}

// deaf sends datagrams into nothing.
type deaf struct{ net.PacketConn }

func (deaf) WriteTo(p []byte, _ net.Addr) (int, error) { return len(p), nil }

// alone are injuries that have one finding and no echo.
var alone = map[string]bool{"open key": true, "damaged key": true, "revoked": true, "mistake under a daemon": true}

// Every broken part is found, alone, with what mends it; a healthy runner has no
// finding but good ones.
func TestExamine(t *testing.T) {
	for name, c := range map[string]struct {
		injure func(b *body)
		check  string
		level  finding.Level
		what   string
		mend   string
	}{
		"healthy":    {},
		"not joined": {func(b *body) { b.cfg.State = filepath.Join(b.t.TempDir(), "none") }, "state", finding.Problem, "there is no runner in", "bivouac edge invite"},
		"open key":   {func(b *body) { b.must(os.Chmod(filepath.Join(b.dir.Path(), "device.key"), 0o644)) }, "key", finding.Problem, "mode 0644", "chmod 600"},
		"open policy": {func(b *body) {
			b.must(os.WriteFile(b.dir.Policy(), []byte("slots = 1\n"), 0o600))
			b.must(os.Chmod(b.dir.Policy(), 0o666))
		}, "edge.hcl", finding.Problem, "mode 0666", "chmod go-w"},
		"failed journal": {func(b *body) {
			b.must(b.dir.SaveEnded(state.Ended{At: time.Now().Add(-time.Minute), Why: "the journal failed: input/output error"}))
		}, "journal", finding.Warning, "ended at", "dmesg"},
		"failed journal, not started": {func(b *body) {
			b.must(b.dir.SaveEnded(state.Ended{At: time.Now().Add(-time.Minute), Why: "the journal failed: input/output error"}))
			b.asked = protocol.Errorf(protocol.CodeFailedPrecondition, "bivouac-edge does not run here")
		}, "journal", finding.Problem, "input/output error", "bivouac-edge run"},
		"damaged key":     {func(b *body) { b.must(os.WriteFile(filepath.Join(b.dir.Path(), "device.key"), []byte("x"), 0o600)) }, "key", finding.Problem, "is damaged", "leave --force"},
		"old certificate": {func(b *body) { b.certificate(time.Now().Add(-time.Minute)) }, "certificate", finding.Warning, "ended", "bivouac-edge run"},
		"mistyped policy": {func(b *body) { b.must(os.WriteFile(b.dir.Policy(), []byte("slots = 1\nfolder {\n"), 0o600)) }, "edge.hcl", finding.Problem, "edge.hcl:", "edit "},
		"mistake under a daemon": {func(b *body) {
			b.must(os.WriteFile(b.dir.Policy(), []byte("slots = 1\nfolder {\n"), 0o600))
			_, err := owner.Load(b.dir.Policy(), b.dir.Path())
			b.status.PolicyProblem, b.status.LastError = err.Error(), "policy: "+err.Error()
		}, "edge.hcl", finding.Problem, "edge.hcl:", "edit "},
		"lost policy": {func(b *body) {
			b.must(b.dir.SaveGoodPolicy([]byte("slots = 1\nsecond_key \"turn\" {\n}\n")))
			b.must(os.RemoveAll(b.dir.Policy()))
		}, "edge.hcl", finding.Problem, "edge.hcl is missing", "edge.good.hcl "},
		"policy of naught": {func(b *body) { b.must(os.WriteFile(b.dir.Policy(), []byte("slots = 0\n"), 0o600)) }, "edge.hcl", finding.Warning, "allows nothing", "edit "},
		"no server":        {func(b *body) { b.stop["server"]() }, "server", finding.Problem, "7401", "bivouac-server"},
		"no broker":        {func(b *body) { b.stop["broker"]() }, "broker", finding.Problem, "7402", "bivouac-broker run"},
		"no broker of dev": {func(b *body) { b.stop["broker"](); b.cfg.Starter = "bivouac dev --runner 203.0.113.10:7401" }, "broker", finding.Problem, "7402", "bivouac dev --runner 203.0.113.10:7401"},
		"told loopback": {func(b *body) {
			b.must(b.dir.SaveEnrolment(state.Enrolment{Server: serverAddr, Broker: "127.0.0.1:7402"}))
		}, "broker.address", finding.Problem, "which is this machine itself", "bivouac dev --broker IP:7402"},
		"another server": {func(b *body) {
			b.must(b.dir.SaveEnrolment(state.Enrolment{Server: brokerAddr, Broker: brokerAddr}))
		}, "server.trust", finding.Problem, "somebody else answers", "leave --force"},
		"UDP is eaten": {func(b *body) {
			listen := b.cfg.Network.ListenPacket
			b.cfg.Network.ListenPacket = func(ctx context.Context) (net.PacketConn, error) {
				c, err := listen(ctx)
				return deaf{c}, err
			}
		}, "server.udp", finding.Warning, "UDP to " + serverAddr, "open port 7401 for UDP"},
		"TCP is eaten": {func(b *body) {
			b.cfg.Network.DialTCP = func(ctx context.Context, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		}, "server.tcp", finding.Warning, "TCP to " + serverAddr, "open port 7401 for TCP"},
		"no sandbox": {func(b *body) {
			b.cfg.Sandbox = seen{report: sandbox.Report{Problem: "bubblewrap is missing: run `apt-get install bubblewrap`"}}
		}, "sandbox", finding.Problem, "bubblewrap is missing", "apt-get install bubblewrap"},
		"weak limits": {func(b *body) {
			b.cfg.Sandbox = seen{report: sandbox.Report{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsRlimit, Freezer: "v2"}}
		}, "limits", finding.Warning, "rlimit", "Delegate=yes"},
		"no groups": {func(b *body) {
			b.cfg.Sandbox = seen{report: sandbox.Report{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsRlimit, Freezer: "v2",
				Problem: "limits hold for single processes only: mount one: `mount -t cgroup2 cgroup2 /sys/fs/cgroup`"}}
		}, "limits", finding.Warning, "single processes", "mount -t cgroup2"},
		"groups of another user": {func(b *body) {
			b.cfg.Sandbox = seen{report: sandbox.Report{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsRlimit, Freezer: "v2",
				Problem: "not this user's: `sudo mkdir -p /g/mine`, and say cgroup = \"mine\" in edge.hcl"}}
		}, "limits", finding.Warning, "not this user's", "sudo mkdir -p /g/mine; echo 'cgroup = \"mine\"' >> "},
		"no freezer": {func(b *body) {
			b.cfg.Sandbox = seen{report: sandbox.Report{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsCgroup}}
		}, "freezer", finding.Warning, "can be frozen", "cgroup"},
		"the daemon saw less": {func(b *body) {
			b.status.Limits, b.status.SandboxProblem = "", "the machine was too busy"
		}, "daemon.sandbox", finding.Warning, "saw less of the sandbox than this look: the machine was too busy", "start it again"},
		"no git":    {func(b *body) { b.cfg.LookFunc = func(string) (string, error) { return "", errors.New("not found") } }, "git", finding.Problem, "not found", "apt-get install git"},
		"no worker": {func(b *body) { b.cfg.Worker += ".gone" }, "worker", finding.Problem, "bivouac-worker, which runs turns, is not at", "--worker"},
		"full disk": {func(b *body) { b.cfg.FreeFunc = func(string) (uint64, uint64, error) { return 5 << 20, 1 << 30, nil } }, "disk", finding.Problem, "5.0 MiB", "du -xh"},
		"daemon is off": {func(b *body) {
			b.asked = protocol.Errorf(protocol.CodeFailedPrecondition, "bivouac-edge does not run here")
		}, "daemon", finding.Warning, "does not run", "bivouac-edge run"},
		"revoked": {func(b *body) {
			b.says = protocol.Errorf(protocol.CodePermissionDenied, "the runner desk was revoked")
			b.asked = protocol.Errorf(protocol.CodeFailedPrecondition, "bivouac-edge does not run here")
		}, "standing", finding.Problem, "desk was revoked", "leave --force"},
		"paused":        {func(b *body) { b.status.Paused = true }, "daemon", finding.Warning, "paused", "resume"},
		"not connected": {func(b *body) { b.status.Connected, b.status.LastError = false, "no route" }, "daemon", finding.Problem, "no route", "bivouac-edge run"},
		"not connected, which has a remedy": {func(b *body) {
			b.status.Connected, b.status.LastError = false, "connection: this machine must enrol again: `bivouac-edge leave --force`"
		}, "daemon", finding.Problem, "although the server answers", "bivouac-edge leave --force"},
		"trouble": {func(b *body) {
			b.status.LastError = "clock: it is behind: set it right, with `timedatectl set-ntp true`"
		}, "daemon", finding.Warning, "last trouble", "timedatectl set-ntp true"},
		"second key":     {func(b *body) { b.status.SecondKeys, b.status.Questions = []string{"files.write"}, 2 }, "second_key", finding.Warning, "2 question(s)", "approvals"},
		"link over TCP":  {func(b *body) { b.status.Transport, b.status.QUICProblem = link.HTTP2, "eaten" }, "daemon.transport", finding.Warning, "eaten", "probe"},
		"folder is gone": {func(b *body) { b.must(os.Remove(b.notes)) }, "edge.hcl", finding.Problem, "notes", "edit"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := healthy(t)
				if c.injure != nil {
					c.injure(b)
				}
				r := Examine(t.Context(), b.cfg)
				var out bytes.Buffer
				if err := r.Text(&out); err != nil {
					t.Fatal(err)
				}
				if c.injure == nil {
					if r.Worst() != finding.OK || r.ExitCode(true) != 0 || len(r.All) < 9 || !strings.Contains(out.String(), "standing") {
						t.Errorf("a healthy runner:\n%s", out.String())
					}
					return
				}
				if alone[name] {
					for _, f := range r.All {
						if f.Level != finding.OK && f.Check != c.check {
							t.Errorf("%s is told as %+v too", name, f)
						}
					}
				}
				for _, f := range r.All {
					if name == "revoked" && strings.Contains(f.Mend, "bivouac-edge run") {
						t.Errorf("a machine that was revoked is to be started: %+v", f)
					}
					if f.Check == c.check && f.Level == c.level && strings.Contains(f.What, c.what) && strings.Contains(f.Mend, c.mend) {
						judge(t, r, c.level)
						return
					}
				}
				t.Errorf("no %s %s of %q with mend %q:\n%s", c.level, c.check, c.what, c.mend, out.String())
			})
		})
	}
}

// What a daemon of days ago ended over is no finding any more.
func TestEndOfLongAgoIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := healthy(t)
		b.must(b.dir.SaveEnded(state.Ended{At: time.Now().Add(-48 * time.Hour), Why: "the journal failed"}))
		for _, f := range Examine(t.Context(), b.cfg).All {
			if f.Check == "journal" {
				t.Errorf("found %+v", f)
			}
		}
	})
}

// judge holds exit code and JSON against the worst finding.
func judge(t *testing.T, r *finding.Report, worst finding.Level) {
	t.Helper()
	if code := r.ExitCode(false); (worst == finding.Problem) != (code == protocol.CodeFailedPrecondition.ExitCode()) || r.ExitCode(true) == 0 {
		t.Errorf("exit codes %d and, strict, %d for %s", code, r.ExitCode(true), worst)
	}
	var out bytes.Buffer
	if err := r.JSON(&out); err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Worst    finding.Level
		Findings []finding.Finding
	}
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil || doc.Worst != worst || len(doc.Findings) != len(r.All) {
		t.Errorf("%v: %s", err, out.String())
	}
}

// A clock that is hours off is said, with how far and which way.
func TestClock(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		theirs time.Duration
		level  finding.Level
		what   string
	}{
		{2 * time.Second, finding.OK, "as that of the server"},
		{-time.Minute, finding.Warning, "1m0s faster than that of the server"},
		{6 * time.Hour, finding.Problem, "6h0m0s slower than that of the server"},
	} {
		r := finding.From("edge")
		r.Clock("the server", now.Add(c.theirs), now, time.Millisecond)
		if f := r.All[0]; f.Level != c.level || !strings.Contains(f.What, c.what) || (f.Level != finding.OK) != strings.Contains(f.Mend, "set-ntp") {
			t.Errorf("%s: %+v", c.theirs, f)
		}
	}
}

// Turns in allocations of their own are named by what an operator of Nomad looks them up
// with; where there is none, nothing is said.
func TestAllocationsAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := healthy(t)
		b.status.Attempts = []edge.AttemptStatus{{Kind: protocol.KindTurn, State: "running"}}
		found := func() (said []string) {
			for _, f := range Examine(t.Context(), b.cfg).All {
				if strings.HasPrefix(f.Check, "allocations") && f.Level == finding.OK {
					said = append(said, f.What)
				}
			}
			return said
		}
		if said := found(); len(said) > 0 {
			t.Errorf("of a turn in the runner's own task: %q", said)
		}
		b.status.Attempts = append(b.status.Attempts, edge.AttemptStatus{Kind: protocol.KindTurn, State: "running", Allocation: "bivouac-a-1"},
			edge.AttemptStatus{Kind: protocol.KindTurn, State: "waiting", Allocation: "bivouac-b-1"})
		if said := strings.Join(found(), "\n"); !strings.Contains(said, "1 turn(s) run in allocations of their own: bivouac-a-1") || !strings.Contains(said, "nomad job status -namespace '*' bivouac-b-1") {
			t.Errorf("said %q", said)
		}
	})
}

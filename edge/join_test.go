package edge

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/device"
	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// invite makes a code of the fake server.
func (f *fakeServer) invite(fingerprint string) (identity.Code, *fakeCode) {
	code, err := identity.NewCode(identity.CodeJoin, fingerprint, rand.Reader)
	if err != nil {
		f.t.Fatal(err)
	}
	one := &fakeCode{}
	f.with(func() { f.codes[string(code.Hash())] = one })
	return code, one
}

func (f *fakeServer) params(t *testing.T, code string) JoinParams {
	return JoinParams{
		Server: "https://" + testServer, Code: code, Name: "desk", State: filepath.Join(t.TempDir(), "state"),
		Policy: owner.Default(), Network: f.net.Network("10.0.0.3"), Version: "test",
	}
}

func TestJoinEndsAfterAnAuthenticatedRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t)
		code, _ := f.invite(f.root.Fingerprint())
		p := f.params(t, "  "+strings.ToUpper(code.Reveal())+"\n") // as people paste it
		folder := t.TempDir()
		p.Policy.Folders = []device.Folder{{Name: "notes", Path: folder, Actions: []string{device.Read}}}
		e, err := Join(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		dir, err := state.Open(p.State)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := dir.Enrolment()
		if err != nil || stored != e || e.Server != testServer || e.Broker != "10.0.0.9:7402" || e.Tenant != testTenant {
			t.Errorf("stored %+v, %v; returned %+v", stored, err, e)
		}
		if n := get(f, func() int { return len(f.connects) }); n != 1 || dir.Epoch() != 1 {
			t.Errorf("%d authenticated round trips, epoch %d", n, dir.Epoch())
		}
		policy, err := owner.Load(dir.Policy(), dir.Path())
		if err != nil || len(policy.Folders) != 1 || len(policy.Toolchains) != 0 {
			t.Errorf("edge.hcl allows %+v, %v", policy, err)
		}
		for name, mode := range map[string]fs.FileMode{".": 0o700, "device.key": 0o600} {
			if info, err := os.Stat(filepath.Join(p.State, name)); err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %v %v", name, info.Mode(), err)
			}
		}
		if _, err := Join(t.Context(), p); protocol.CodeOf(err) != protocol.CodeAlreadyExists || !strings.Contains(err.Error(), "desk") || !strings.Contains(err.Error(), "bivouac-edge leave") {
			t.Errorf("joining twice: %v", err)
		}
	})
}

// Every way in which joining fails has its code and says what to do, and leaves
// no runner behind.
func TestJoinFailures(t *testing.T) {
	other := identitytest.NewRoot()
	for name, c := range map[string]struct {
		change func(t *testing.T, f *fakeServer, p *JoinParams, code identity.Code, known *fakeCode)
		code   protocol.Code
		want   string
		silent bool // nothing may be sent
	}{
		"mistyped secret": {func(_ *testing.T, _ *fakeServer, p *JoinParams, code identity.Code, _ *fakeCode) {
			p.Code = strings.Replace(p.Code, "join_", "join_x", 1)
		}, protocol.CodeInvalidArgument, "middle part", true},
		"cut fingerprint": {func(_ *testing.T, _ *fakeServer, p *JoinParams, _ identity.Code, _ *fakeCode) {
			p.Code = p.Code[:len(p.Code)-1]
		}, protocol.CodeInvalidArgument, "64 hexadecimal digits", true},
		"another kind of code": {func(_ *testing.T, _ *fakeServer, p *JoinParams, _ identity.Code, _ *fakeCode) {
			p.Code = strings.Replace(p.Code, "join_", "srv_", 1)
		}, protocol.CodeInvalidArgument, "begin with join_", true},
		"plain http": {func(_ *testing.T, _ *fakeServer, p *JoinParams, _ identity.Code, _ *fakeCode) {
			p.Server = "http://" + testServer
		}, protocol.CodeInvalidArgument, "TLS only", true},
		"the API's port": {func(_ *testing.T, _ *fakeServer, p *JoinParams, _ identity.Code, _ *fakeCode) {
			p.Server = strings.Replace("https://"+testServer, ":7401", ":7400", 1)
		}, protocol.CodeInvalidArgument, "runners join at https://" + testServer, true},
		"the broker's port": {func(_ *testing.T, _ *fakeServer, p *JoinParams, _ identity.Code, _ *fakeCode) {
			p.Server = strings.Replace("https://"+testServer, ":7401", ":7402", 1)
		}, protocol.CodeInvalidArgument, "port 7402 is the broker's: runners join at https://" + testServer, true},
		"no address": {func(_ *testing.T, _ *fakeServer, p *JoinParams, _ identity.Code, _ *fakeCode) {
			p.Server = "https://host/path"
		}, protocol.CodeInvalidArgument, "is no server address", true},
		"a folder that is not there": {func(_ *testing.T, _ *fakeServer, p *JoinParams, _ identity.Code, _ *fakeCode) {
			p.Policy.Folders = []device.Folder{{Name: "n", Path: "/does/not/exist", Actions: []string{device.Read}}}
		}, protocol.CodeInvalidArgument, "--allow-folder n: ", true},
		"wrong fingerprint": {func(t *testing.T, f *fakeServer, p *JoinParams, _ identity.Code, _ *fakeCode) {
			code, _ := f.invite(other.Fingerprint())
			p.Code = code.Reveal()
		}, protocol.CodeUnauthenticated, "it is another server, or somebody stands in between", true},
		"expired": {func(_ *testing.T, f *fakeServer, _ *JoinParams, _ identity.Code, known *fakeCode) {
			f.with(func() { known.expired = true })
		}, protocol.CodeFailedPrecondition, "has expired", false},
		"reused by another key": {func(_ *testing.T, f *fakeServer, _ *JoinParams, _ identity.Code, known *fakeCode) {
			f.with(func() { known.usedBy = "another" })
		}, protocol.CodeAlreadyExists, "was used by another machine", false},
		"unknown": {func(_ *testing.T, f *fakeServer, p *JoinParams, _ identity.Code, _ *fakeCode) {
			f.with(func() { clear(f.codes) })
		}, protocol.CodeNotFound, "bivouac edge invite", false},
		"server away": {func(_ *testing.T, f *fakeServer, _ *JoinParams, _ identity.Code, _ *fakeCode) {
			f.stop()
		}, protocol.CodeUnavailable, "that port 7401 is open", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t)
				code, known := f.invite(f.root.Fingerprint())
				p := f.params(t, code.Reveal())
				c.change(t, f, &p, code, known)
				_, err := Join(t.Context(), p)
				var e *protocol.Error
				if !errors.As(err, &e) || e.Code != c.code || !strings.Contains(e.Message, c.want) {
					t.Errorf("%s: %v, want %s %q", protocol.CodeOf(err), err, c.code, c.want)
				}
				if strings.Contains(err.Error(), "context canceled") {
					t.Errorf("what this side did is told as a cause: %v", err)
				}
				if strings.Contains(err.Error(), strings.Split(code.Reveal(), "_")[1]) {
					t.Error("the error shows the code (INV-17)")
				}
				if _, err := state.Open(p.State); err == nil {
					t.Error("a failed join left a runner")
				}
				if _, err := os.Stat(filepath.Join(p.State, "edge.hcl")); err == nil {
					t.Error("a failed join left its policy")
				}
				if c.silent && get(f, func() bool { return known.usedBy != "" || len(f.connects) > 0 }) {
					t.Error("something was sent")
				}
			})
		})
	}
}

// A failed join does not stand in the way of the corrected one, and takes nothing
// from an owner who wrote a policy before.
func TestJoinMayBeCorrected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t)
		code, _ := f.invite(f.root.Fingerprint())
		p := f.params(t, code.Reveal())
		p.Policy.Folders = []device.Folder{{Name: "notes", Path: t.TempDir(), Actions: []string{device.Read}}}
		f.stop()
		if _, err := Join(t.Context(), p); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Fatalf("without a server: %v", err)
		}
		own := p
		own.State, own.Policy = filepath.Join(t.TempDir(), "own"), owner.Default()
		dir, err := state.Create(own.State)
		if err != nil {
			t.Fatal(err)
		}
		text := owner.Render(p.Policy)
		if err := os.WriteFile(dir.Policy(), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Join(t.Context(), own); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Fatalf("without a server: %v", err)
		}
		if b, err := os.ReadFile(dir.Policy()); err != nil || string(b) != string(text) {
			t.Errorf("the owner's own policy is %q, %v", b, err)
		}
		f.listen()
		if _, err := Join(t.Context(), p); err != nil {
			t.Fatalf("corrected: %v", err)
		}
	})
}

// A join that broke off after enrolment is repeated with the same code: the key
// stays, and so does the id.
func TestJoinMayBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t)
		code, _ := f.invite(f.root.Fingerprint())
		p := f.params(t, code.Reveal())
		f.with(func() { f.forgot = true }) // enrols, and refuses the first call
		if _, err := Join(t.Context(), p); err == nil || !strings.Contains(err.Error(), "repeat the same command") {
			t.Fatalf("without a round trip: %v", err)
		}
		if _, err := state.Open(p.State); err == nil {
			t.Fatal("joined without a round trip")
		}
		f.with(func() { f.forgot = false })
		if _, err := Join(t.Context(), p); err != nil {
			t.Fatalf("repeated: %v", err)
		}
	})
}

func TestLeaveTellsTheServerAndWipes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t)
		m := enrolled(t, f)
		p := LeaveParams{State: m.dir, Supervisors: m.cfg.Supervisors, Network: m.cfg.Network}
		f.stop()
		if _, err := Leave(t.Context(), p); protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "--force") {
			t.Fatalf("without the server: %v", err)
		}
		if !m.dir.Joined() {
			t.Fatal("the runner was forgotten though its server was not told")
		}
		f.listen()
		if _, err := Leave(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if m.dir.Joined() || !get(f, func() bool { return f.forgot }) {
			t.Error("left, but something still knows the runner")
		}
		if _, err := os.Stat(filepath.Join(m.dir.Path(), "device.key")); err == nil {
			t.Error("the key is left")
		}
		if _, err := os.Stat(m.dir.Policy()); err != nil {
			t.Errorf("the owner's policy went too: %v", err)
		}
	})
}

func TestLeaveByForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t)
		m := enrolled(t, f)
		f.stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := Leave(ctx, LeaveParams{State: m.dir, Supervisors: m.cfg.Supervisors, Network: m.cfg.Network, Force: true}); err != nil || m.dir.Joined() {
			t.Errorf("%v, joined %v", err, m.dir.Joined())
		}
	})
}

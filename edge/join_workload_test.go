package edge

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

const someIdentity = "eyJh.eyJh.c2ln"

// workloadParams enrol by the identity in a file.
func (f *fakeServer) workloadParams(t *testing.T, text string) JoinParams {
	t.Helper()
	p := f.params(t, "")
	p.Policy = owner.Default()
	p.Workload = Workload{Fingerprint: strings.ToUpper(f.root.Fingerprint()), File: filepath.Join(t.TempDir(), "nomad_bivouac.jwt")}
	if err := os.WriteFile(p.Workload.File, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// While the server cannot answer the machine tries again, with the identity that is in
// the file then; enrolled, it sends none any more.
func TestEnrolByWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t)
		p := f.workloadParams(t, "old.old.old")
		f.with(func() {
			f.workloads = fakeWorkloads{token: someIdentity, first: []error{
				refuse(protocol.CodeUnavailable, "its broker does not answer"), refuse(protocol.CodeUnavailable, "its broker does not answer")}}
		})
		done := make(chan error, 1)
		go func() { done <- Enrol(t.Context(), p, slog.New(slog.DiscardHandler)) }()
		synctest.Wait()
		if err := os.WriteFile(p.Workload.File, []byte(someIdentity+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		seen := get(f, func() []string { return f.workloads.seen })
		if len(seen) != 3 || seen[0] != "old.old.old" || seen[2] != someIdentity {
			t.Errorf("sent %q", seen)
		}
		d, err := state.Open(p.State)
		if err != nil {
			t.Fatal(err)
		}
		if e, err := d.Enrolment(); err != nil || e.Server != testServer || e.Tenant != testTenant {
			t.Errorf("%+v %v", e, err)
		}
		if err := os.Remove(p.Workload.File); err != nil {
			t.Fatal(err)
		}
		if err := Enrol(t.Context(), p, slog.New(slog.DiscardHandler)); err != nil {
			t.Errorf("at the next start: %v", err)
		}
		p.Server = "https://10.0.0.77:7401"
		if err := Enrol(t.Context(), p, slog.New(slog.DiscardHandler)); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "leave") {
			t.Errorf("at another server: %v", err)
		}
	})
}

// What cannot become right is not tried again, sends nothing that is none, and leaves no
// runner.
func TestEnrolByWorkloadMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		change func(*JoinParams)
		code   protocol.Code
		says   string
		sent   int
	}{
		"no file":         {someIdentity, func(p *JoinParams) { p.Workload.File += "x" }, protocol.CodeInvalidArgument, "file = true", 0},
		"a join code":     {"join_a_b", nil, protocol.CodeInvalidArgument, "holds no workload identity", 0},
		"two tokens":      {"a.b.c d.e.f", nil, protocol.CodeInvalidArgument, "holds no workload identity", 0},
		"a large file":    {strings.Repeat("a", 17<<10) + ".b.c", nil, protocol.CodeInvalidArgument, "holds no workload identity", 0},
		"cut fingerprint": {someIdentity, func(p *JoinParams) { p.Workload.Fingerprint = "abc" }, protocol.CodeInvalidArgument, "64 hexadecimal digits", 0},
		"another server":  {someIdentity, func(p *JoinParams) { p.Workload.Fingerprint = strings.Repeat("0", 64) }, protocol.CodeUnauthenticated, "", 0},
		"refused by it":   {"a.b.c", nil, protocol.CodeUnauthenticated, "is refused", 1},
		"plain http":      {someIdentity, func(p *JoinParams) { p.Server = "http://" + testServer }, protocol.CodeInvalidArgument, "TLS only", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer(t)
			f.with(func() { f.workloads = fakeWorkloads{token: someIdentity} })
			p := f.workloadParams(t, c.text)
			if c.change != nil {
				c.change(&p)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := Enrol(ctx, p, slog.New(slog.DiscardHandler))
			if protocol.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", name, err)
			}
			if sent := get(f, func() int { return len(f.workloads.seen) }); sent != c.sent {
				t.Errorf("%s: %d identities were sent", name, sent)
			}
			if d, err := state.At(p.State); err != nil || d.Joined() {
				t.Errorf("%s: a runner is left behind, %v", name, err)
			}
		})
	}
}

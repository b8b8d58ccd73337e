package broker_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/consul/consultest"
	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/keyring"
	"bivouac/server/capability"
)

// Caps are set anew while the broker runs: for new requests, for those that are
// open, and without forgetting what was spent. INV-10.
func TestCapsAreSetAnew(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		caps := func(usd float64, tenants ...broker.TenantCap) *broker.Caps {
			return &broker.Caps{SpendUSDPerHour: &usd, Tenant: tenants}
		}
		acme := func(c *capability.Claims) { c.TenantName = "acme" }
		ask := func() error {
			_, _, err := call(t.Context(), server, modelRequest(w.sign(w.claims(acme)), "main", "hello"))
			return err
		}
		if err := ask(); err != nil {
			t.Fatal(err)
		}
		doomed, other := w.open(server, w.claims(acme)), w.open(server, w.claims(nil))
		w.must(w.broker.SetCaps(caps(1, broker.TenantCap{Name: "acme", Models: []string{}})))
		if err := <-doomed.done; protocol.CodeOf(err) != protocol.CodePolicyDenied || !strings.HasPrefix(err.Error(), "refused by cap: ") {
			t.Errorf("an open flow: %v", err)
		}
		if err := ask(); protocol.CodeOf(err) != protocol.CodePolicyDenied {
			t.Errorf("a new request: %v", err)
		}
		if err := <-other.done; err != nil {
			t.Errorf("another tenant's flow: %v", err)
		}
		// Caps that are wrong leave those in force.
		if err := w.broker.SetCaps(caps(1, broker.TenantCap{Name: "acme", Models: []string{"nowhere"}})); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("a model that is not there: %v", err)
		}
		if err := ask(); protocol.CodeOf(err) != protocol.CodePolicyDenied {
			t.Errorf("after wrong caps: %v", err)
		}
		// 400 + 2050 micro-USD or so were spent above; they count under the new cap.
		w.must(w.broker.SetCaps(caps(0.0025)))
		if err := ask(); protocol.CodeOf(err) != protocol.CodeRateLimited {
			t.Errorf("what was spent is forgotten: %v", err)
		}
		w.must(w.broker.SetCaps(caps(1)))
		if err := ask(); err != nil {
			t.Errorf("with room again: %v", err)
		}
	})
}

// recorder waits for log lines.
type recorder struct{ lines chan string }

func (r recorder) Write(p []byte) (int, error) {
	r.lines <- string(p)
	return len(p), nil
}

func (r recorder) await(t *testing.T, what string) {
	t.Helper()
	for end := time.After(20 * time.Second); ; {
		select {
		case line := <-r.lines:
			if strings.Contains(line, what) {
				return
			}
		case <-end:
			t.Fatalf("%q was never logged", what)
		}
	}
}

// The file is followed as an editor writes it. What cannot be read, and a file
// that has lost its caps, change nothing.
func TestCapsFileIsFollowed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "broker")
	if _, err := keyring.Init(dir); err != nil {
		t.Fatal(err)
	}
	keys, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	file := filepath.Join(dir, "broker.hcl")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".tmp", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".tmp", file); err != nil {
			t.Fatal(err)
		}
	}
	write(goodConfig)
	cfg, err := broker.LoadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Servers = []string{"127.0.0.1:1"} // nobody: no feed is needed here
	log := recorder{make(chan string, 1000)}
	b, err := broker.New(cfg, broker.Ports{Authority: keys, Root: keys, Paths: consultest.NewMemory(), CallLog: filepath.Join(dir, "calls.log"),
		ConfigFile: file, Log: slog.New(slog.NewTextHandler(io.Writer(log), nil))})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx, nil, ln) }()
	if got := b.Caps(); *got.SpendUSDPerHour != 2.5 {
		t.Errorf("at the start: %+v", got)
	}
	for _, step := range []struct {
		text, logged string
		spend        float64
	}{
		{strings.Replace(goodConfig, "2.5", "0.5", 1), "caps read anew", 0.5},
		{goodConfig[:len(goodConfig)-10], "is refused", 0.5},
		{goodConfig[:strings.Index(goodConfig, "caps {")], "has no caps any more", 0.5},
		{strings.Replace(goodConfig, `models       = ["main"]`, `models       = ["gone"]`, 1), "there is no model", 0.5},
		{goodConfig, "caps read anew", 2.5},
	} {
		write(step.text)
		log.await(t, step.logged)
		if got := b.Caps(); *got.SpendUSDPerHour != step.spend {
			t.Errorf("after %q: %v", step.logged, *got.SpendUSDPerHour)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

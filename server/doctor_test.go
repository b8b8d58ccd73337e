package server_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server"
	"bivouac/server/api/apiv1"
	"bivouac/server/broker/protocol/brokerv1"
)

// found is one finding of an answer.
func found(all []*apiv1.Finding, where, check string) *apiv1.Finding {
	for _, f := range all {
		if f.GetWhere() == where && f.GetCheck() == check {
			return f
		}
	}
	return nil
}

// The running server says what it and its broker stand on, to the operator
// alone: what it counts is of all tenants. INV-9.
func TestDiagnose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t)
		brokerPipe := w.net.Listen(brokerAddr)
		stopBroker := background(t, func(ctx context.Context) error { return w.broker.Serve(ctx, nil, brokerPipe) })
		w.startServer()
		w.startFeed()
		w.awaitReady()
		w.broker.Backend.Findings = []*brokerv1.Finding{{Check: "provider.gpt", Level: "problem", What: "refused", Why: "calls fail", Mend: "curl"}}
		operator := w.as(w.token)
		ask := func() []*apiv1.Finding {
			t.Helper()
			res, err := operator.Operations.Diagnose(t.Context(), &apiv1.DiagnoseRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return res.GetFindings()
		}
		all := ask()
		for _, check := range []string{"database", "disk", "queue", "certificate", "signing key", "broker", "feed"} {
			if f := found(all, "server", check); f.GetLevel() != "ok" {
				t.Errorf("%s of a healthy server: %v", check, f)
			}
		}
		// The pipes of this world carry no datagrams, and a wall does neither.
		if f := found(all, "server", "runners.udp"); f.GetLevel() != "warning" || !strings.Contains(f.GetMend(), "open port 7401 for UDP") {
			t.Errorf("the wall before UDP: %v", f)
		}
		if f := found(all, "broker", "provider.gpt"); f.GetLevel() != "problem" || f.GetMend() != "curl" {
			t.Errorf("the broker's own finding: %v", f)
		}

		who, err := operator.Principals.WhoAmI(t.Context(), &apiv1.WhoAmIRequest{})
		if err != nil {
			t.Fatal(err)
		}
		tenantsAreHeld(t, w, operator, who.GetPrincipal())

		admin, _ := w.add(operator, "home", "owner", true)
		if _, err := admin.Operations.Diagnose(t.Context(), &apiv1.DiagnoseRequest{Tenants: []*apiv1.NamedTenant{{Tenant: "other"}}}); protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("an admin of one tenant asks for others: %v", err)
		}
		if _, err := admin.Operations.Diagnose(t.Context(), &apiv1.DiagnoseRequest{}); protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "bivouac-server doctor") {
			t.Errorf("an admin of one tenant: %v", err)
		}

		// The broker reads no feed any more, and then it is gone.
		if err := w.feed(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if f := found(ask(), "server", "feed"); f.GetLevel() != "problem" || !strings.Contains(f.GetMend(), "bivouac-broker run") {
			t.Errorf("a stale feed: %v", f)
		}
		if err := stopBroker(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		all = ask()
		if f := found(all, "server", "broker"); f.GetLevel() != "problem" || !strings.Contains(f.GetMend(), brokerAddr) {
			t.Errorf("no broker: %v", f)
		}
		if f := found(all, "server", "database"); f.GetLevel() != "ok" {
			t.Errorf("and what still works is said: %v", f)
		}
	})
}

// Without a server: each broken part is found with what mends it, and a sound
// directory has no problem.
func TestExamineWithoutAServer(t *testing.T) {
	free := func() (three [3]string) {
		for i := range three { // none is let go before all are found: they differ
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			three[i] = l.Addr().String()
		}
		return three
	}
	for name, c := range map[string]struct {
		injure func(t *testing.T, c *server.Config)
		check  string
		level  finding.Level
		what   string
		mend   string
	}{
		"sound":          {nil, "", "", "", ""},
		"no directory":   {func(t *testing.T, c *server.Config) { c.DataDir += "/none" }, "data directory", finding.Problem, "is not there", "bivouac-server bootstrap"},
		"open directory": {func(t *testing.T, c *server.Config) { must(t, os.Chmod(c.DataDir, 0o755)) }, "data directory", finding.Problem, "mode 0755", "chmod 700"},
		"open database":  {func(t *testing.T, c *server.Config) { must(t, os.Chmod(filepath.Join(c.DataDir, "bivouac.db"), 0o666)) }, "data directory", finding.Problem, "mode 0666", "chmod 600"},
		"no database":    {func(t *testing.T, c *server.Config) { must(t, os.Remove(filepath.Join(c.DataDir, "bivouac.db"))) }, "database", finding.Warning, "no database", "bootstrap"},
		"database cut short": {func(t *testing.T, c *server.Config) {
			must(t, os.Truncate(filepath.Join(c.DataDir, "bivouac.db"), 0))
		}, "database", finding.Warning, "was never finished", "bootstrap"},
		"damaged database": {func(t *testing.T, c *server.Config) {
			must(t, os.WriteFile(filepath.Join(c.DataDir, "bivouac.db"), []byte(strings.Repeat("no database ", 1000)), 0o600))
		}, "database", finding.Problem, "not a usable SQLite", "restore"},
		"bad address": {func(t *testing.T, c *server.Config) { c.RunnerAddress = "nowhere" }, "configuration", finding.Problem, "runners.address", "--help"},
		"half told":   {func(t *testing.T, c *server.Config) { c.AdvertiseRunner = "203.0.113.10:7401" }, "addresses", finding.Problem, "their own machine to them", "--advertise-broker"},
		"all told": {func(t *testing.T, c *server.Config) {
			c.AdvertiseRunner, c.AdvertiseBroker = "203.0.113.10:7401", "203.0.113.10:7402"
		}, "addresses", finding.OK, "203.0.113.10:7402 for the broker", ""},
		"not enrolled": {func(t *testing.T, c *server.Config) {}, "identity", finding.Warning, "not enrolled", "server-code"},
		"taken port": {func(t *testing.T, c *server.Config) {
			l, err := net.Listen("tcp", c.PublicAddress)
			must(t, err)
			t.Cleanup(func() { l.Close() })
		}, "port of the API", finding.OK, "in use", ""},
		"half taken ports": {func(t *testing.T, c *server.Config) {
			l, err := net.Listen("tcp", c.PublicAddress)
			must(t, err)
			t.Cleanup(func() { l.Close() })
		}, "ports", finding.Warning, "nobody listens for runners", "--runners HOST:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := server.Default()
			at := free()
			cfg.DataDir, cfg.PublicAddress, cfg.RunnerAddress, cfg.BrokerAddress = filepath.Join(t.TempDir(), "data"), at[0], at[1], at[2]
			boot := server.Bootstrap{Config: cfg, Tenant: "local", Principal: "alice", TokenFile: filepath.Join(t.TempDir(), "token")}
			if _, err := boot.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if c.injure != nil {
				c.injure(t, &cfg)
			}
			r := server.Examine(t.Context(), cfg)
			if c.injure == nil {
				if r.Worst() == finding.Problem || len(r.All) < 6 {
					t.Errorf("a sound directory: %+v", r.All)
				}
				return
			}
			for _, f := range r.All {
				if f.Check == c.check && f.Level == c.level && strings.Contains(f.What, c.what) && strings.Contains(f.Mend, c.mend) {
					return
				}
			}
			t.Errorf("no %s %s of %q with mend %q: %+v", c.level, c.check, c.what, c.mend, r.All)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// issuedTools: one reads with a user of the database, and one writes with a key.
const issuedTools = `
  tool "report" {
    kind        = "http"
    description = "Reads a report."
    destination = "reports"
    method      = "GET"
    path        = "/report?how={how}"
    credential  = "reports-db"
    effect      = "R0"
    recovery    = "idempotent"
    input       = { type = "object", additionalProperties = false, required = ["how"], properties = { how = { type = "string" } } }
  }
  tool "order" {
    kind        = "http"
    description = "Orders something, which happens once."
    destination = "reports"
    method      = "POST"
    path        = "/order?how=held"
    credential  = "reports-key"
    effect      = "R3"
    recovery    = "opaque"
    approval    = "never"
    input       = { type = "object", additionalProperties = false }
  }
`

const issuedScript = `
rule "hold" {
  when {
    user_contains = "read slowly"
    results       = 0
  }
  call "report" { arguments = { how = "held" } }
}
rule "order" {
  when {
    user_contains = "order once"
    results       = 0
  }
  call "order" { arguments = {} }
}
rule "after" {
  when {
    user_contains = "order once"
    results       = 1
  }
  call "report" { arguments = { how = "now" } }
}
rule "read" {
  when {
    user_contains = "read for ever"
  }
  delay = "50ms"
  call "report" { arguments = { how = "now" } }
}
rule "read once" {
  when {
    user_contains = "read once"
    results       = 0
  }
  call "report" { arguments = { how = "now" } }
}
rule "tell" {
  when { any_result_matches = "(?s)(?P<all>.+)" }
  text = "I got: ${any.all}"
}
`

// teller is an upstream that lets in whom the database lets in, and holds answers back
// until it is told to give them.
type teller struct {
	*httptest.Server
	reports *reports

	mu     sync.Mutex // guards below
	logins []login    // of requests, in order
	gone   int        // requests whose caller went before the answer
	orders int
	held   chan struct{} // closed when what is held may go
}

type login struct {
	user, password string
	err            error
}

func newTeller(t *testing.T, r *reports) *teller {
	u := &teller{reports: r, held: make(chan struct{})}
	u.Server = httptest.NewServer(u)
	t.Cleanup(u.Close)
	return u
}

func (u *teller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l := login{err: errors.New("no user and no key")}
	if user, password, ok := r.BasicAuth(); ok {
		l = login{user, password, u.reports.letsIn(context.WithoutCancel(r.Context()), user, password)}
	} else if r.Header.Get("Authorization") == "Bearer "+upstreamKey {
		l = login{}
	}
	u.mu.Lock()
	u.logins = append(u.logins, l)
	held := u.held
	if r.URL.Path == "/order" {
		u.orders++
	}
	u.mu.Unlock()
	if r.URL.Query().Get("how") == "held" {
		select {
		case <-held:
		case <-r.Context().Done():
			u.mu.Lock()
			u.gone++
			u.mu.Unlock()
			return
		}
	}
	if l.err != nil {
		w.WriteHeader(http.StatusForbidden)
	}
	_, _ = io.WriteString(w, fmt.Sprintf("let in: %t", l.err == nil))
}

// asked for so far: all logins, and those that were refused.
func (u *teller) asked() (all []login, refused []login) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, l := range u.logins {
		if l.err != nil {
			refused = append(refused, l)
		}
	}
	return append(all, u.logins...), refused
}

// issuing is a deployment whose agents use what an engine issues.
type issuing struct {
	*person
	server *vaulttest.Server
	vault  *stack.Vault
	db     *reports
	teller *teller
}

func newIssuing(t *testing.T, p engine.Program) *issuing {
	x := &issuing{server: vaulttest.Start(t, p), db: newReports(t)}
	x.db.engine(t, x.server)
	x.teller = newTeller(t, x.db)
	x.vault = &stack.Vault{Address: x.server.Address(), CAFile: x.server.CAFile(), Token: x.server.RootToken(), AuditFile: x.server.AuditFile(), Command: p.Command, Home: t.TempDir(),
		Reached: []string{"reports"}, Stored: map[string]string{"reports-key": upstreamKey},
		Blocks: fmt.Sprintf("destination \"reports\" {\n  url = %q\n  allow_private = true\n  credential \"reports-key\" {}\n  credential \"reports-db\" {\n    from \"database\" {\n      mount = %q\n      role = %q\n    }\n  }\n}\n",
			x.teller.URL, mountDatabase, roleReports)}
	x.person = first(t, newStack(t, stack.Config{Script: issuedScript, Vault: x.vault}))
	for _, name := range []string{"reader", "writer"} {
		file := x.Path("home", name+".hcl")
		x.write(file, strings.ReplaceAll(revokeService, "NAME", name)+issuedTools+"}\n", 0o644)
		x.must("agents", "apply", file)
		x.must("grant", "create", "--agent", name, "--credential", "reports-db", "--credential", "reports-key")
	}
	return x
}

func (x *issuing) admin(args ...string) (string, error) {
	return x.vault.Admin(x.t.Context(), args...)
}

// accessor of a grant's token, as an admin finds it.
func (x *issuing) accessor(grant string) string {
	x.t.Helper()
	out, err := x.admin("kv", "get", "-field=accessor", "bivouac-grants/"+x.id+"/"+grant)
	if err != nil {
		x.t.Fatal(err)
	}
	return out
}

// A user of a database is issued for an action, is let in by the upstream, and is gone
// when the grant is revoked in the middle of that: with the call, the turn and the
// lease, while another grant's users are let in. A renewal in the middle of a turn and
// of an effect is felt by nobody but whoever has the old token. INV-13.
func TestIssuedInATurn(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the whole product with a real server")
	}
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newIssuing(t, p)
		x.renewed()
		x.revoked()
	})
}

// revoked in the middle of a call, by the admin.
func (x *issuing) revoked() {
	t := x.t
	before, _ := x.teller.asked()
	turn := x.submit("chat", "read slowly", "--new", "--agent", "reader").ID
	var l login
	await(t, "the call to be under way", func() error {
		all, _ := x.teller.asked()
		if len(all) == len(before) {
			return errors.New("nothing was asked for")
		}
		l = all[len(all)-1]
		return nil
	})
	if l.err != nil || l.user == "" {
		t.Fatalf("the issued user %q is not let in: %v", l.user, l.err)
	}
	if _, err := x.admin("token", "revoke", "-accessor", x.accessor(x.grantOf("reader"))); err != nil {
		t.Fatal(err)
	}
	x.wantRevoked(turn)
	await(t, "the end of the call", func() error {
		x.teller.mu.Lock()
		defer x.teller.mu.Unlock()
		if x.teller.gone != 1 {
			return fmt.Errorf("%d callers went", x.teller.gone)
		}
		return nil
	})
	await(t, "the end of the issued user", func() error {
		if x.db.letsIn(t.Context(), l.user, l.password) == nil {
			return errors.New("its password opens the database")
		}
		return nil
	})
	if got := x.completed(x.submit("chat", "read once", "--new", "--agent", "writer").ID).GetAnswer(); got != "I got: let in: true" {
		t.Errorf("under another grant: %q", got)
	}
	await(t, "the end of all users and leases", func() error {
		left, err := x.server.Root(t).Logical().ListWithContext(t.Context(), "sys/leases/lookup/"+mountDatabase+"/creds/"+roleReports)
		if err != nil || left != nil || x.db.users(t) > 0 {
			return fmt.Errorf("leases %v, %d users, %v", left, x.db.users(t), err)
		}
		return nil
	})
}

// renewed in the middle of an effect, and of a turn that reads without a pause.
func (x *issuing) renewed() {
	t := x.t
	grant := x.grantOf("writer")
	old := x.accessor(grant)
	if _, err := x.admin("token", "lookup", "-accessor", old); err != nil {
		t.Fatalf("before: %v", err)
	}
	busy := x.submit("chat", "read for ever", "--new", "--agent", "writer").ID
	turn := x.submit("chat", "order once", "--new", "--agent", "writer").ID
	await(t, "the effect under way, and reads", func() error {
		all, _ := x.teller.asked()
		x.teller.mu.Lock()
		defer x.teller.mu.Unlock()
		if x.teller.orders != 1 || len(all) < 5 {
			return fmt.Errorf("%d orders among %d requests", x.teller.orders, len(all))
		}
		return nil
	})
	x.must("grant", "rotate", grant)
	renewed := x.accessor(grant)
	all, _ := x.teller.asked()
	await(t, "reads after the renewal", func() error {
		if more, _ := x.teller.asked(); len(more) < len(all)+5 {
			return fmt.Errorf("%d more", len(more)-len(all))
		}
		return nil
	})
	close(x.teller.held)
	if ended := x.completed(turn); ended.GetAnswer() != "I got: let in: true" {
		t.Errorf("the turn says %q", ended.GetAnswer())
	}
	x.teller.mu.Lock()
	orders := x.teller.orders
	x.teller.held = make(chan struct{})
	x.teller.mu.Unlock()
	if orders != 1 {
		t.Errorf("the effect was sent %d times", orders)
	}
	x.judgeRenewed(busy, turn, old, renewed)
}

// judgeRenewed: nobody was refused, the old token is dead and the new one lives.
func (x *issuing) judgeRenewed(busy, turn, old, renewed string) {
	t := x.t
	var going *apiv1.Turn
	if going = x.turn(busy); going.GetEndedAt() != nil {
		t.Errorf("the turn that reads ended: %s (%s) %s", going.GetState(), going.GetReason(), going.GetMessage())
	}
	for _, a := range append(going.GetActions(), x.turn(turn).GetActions()...) {
		if s := a.GetState(); s != "SUCCEEDED" && s != "DISPATCHED" && s != "INTENDED" {
			t.Errorf("an action is %s: %v", s, a)
		}
	}
	if _, refused := x.teller.asked(); len(refused) > 0 {
		t.Errorf("%d of the issued users were not let in: %v", len(refused), refused[0].err)
	}
	for _, id := range []string{busy, turn} {
		events := x.must("events", x.turn(id).GetSessionId())
		if !strings.Contains(events, "renewed") && !strings.Contains(events, "grant.rotated") {
			t.Errorf("the session does not say that its grant was renewed:\n%s", events)
		}
	}
	if out, err := x.admin("token", "lookup", "-accessor", old); err == nil {
		t.Errorf("the old token lives: %s", out)
	}
	if _, err := x.admin("token", "lookup", "-accessor", renewed); err != nil || renewed == old {
		t.Errorf("the new token: %v", err)
	}
	x.must("cancel", busy)
	x.ended(busy)
}

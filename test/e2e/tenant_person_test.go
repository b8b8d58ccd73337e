//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
	"bivouac/test/e2e/stack"
)

// newStack starts a deployment of shipped binaries that ends with the test.
func newStack(t *testing.T, cfg stack.Config) *stack.Stack {
	t.Helper()
	bin, err := stack.Build()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Bin, cfg.Dir = bin, t.TempDir()
	s, err := stack.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(s.Server.Tail(), s.Broker.Tail())
			for _, e := range s.Edges {
				t.Log(e.Daemon.Tail())
			}
		}
	})
	return s
}

// person is somebody with a login of their own: the command line, the API's
// client, and bare HTTP.
type person struct {
	*stack.Stack
	t           *testing.T
	id, name    string
	api         *client.Client
	login, home string
	url, token  string
}

// first is who set the deployment up.
func first(t *testing.T, s *stack.Stack) *person {
	t.Helper()
	p := &person{Stack: s, t: t, name: "me", login: s.Login, home: s.Home, api: s.API}
	p.readLogin()
	who, err := p.api.Principals.WhoAmI(t.Context(), &apiv1.WhoAmIRequest{})
	if err != nil {
		t.Fatal(err)
	}
	p.id = who.GetPrincipal().GetId()
	return p
}

// newPerson adds a principal to a tenant and logs in as it.
func newPerson(t *testing.T, s *stack.Stack, tenant, name string, admin bool) *person {
	t.Helper()
	added, err := s.API.Principals.AddPrincipal(t.Context(), &apiv1.AddPrincipalRequest{Name: name, Kind: "user", Admin: admin, Tenant: tenant})
	if err != nil {
		t.Fatal(err)
	}
	p := &person{Stack: s, t: t, id: added.GetPrincipal().GetId(), name: name, login: s.Path("login-" + name), home: newHome(t)}
	token := s.Path("secrets", "token-"+name)
	p.write(token, added.GetToken()+"\n", 0o600)
	p.must("login", first(t, s).url, "--token-file", token)
	p.readLogin()
	if p.api, err = client.New(client.Config{URL: p.url, Token: p.token}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.api.Close)
	return p
}

// newHome is a folder that everybody may enter, and not in /tmp, which sandboxed
// code has for itself: what keeps code out of it is its confinement alone.
func newHome(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "bivouac-home-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (p *person) readLogin() {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.login, "login.json"))
	var l struct{ Server, Token string }
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.url, p.token = l.Server, l.Token
}

// write makes a file and its folders. Folders are open to everybody, so that only
// what confines a process keeps it from them.
func (p *person) write(name, text string, mode os.FileMode) {
	p.t.Helper()
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil {
		err = os.WriteFile(name, []byte(text), mode)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// cli runs a command as this person and returns what it printed.
func (p *person) cli(args ...string) (string, error) {
	return p.CLI(p.t.Context(), "", append([]string{"--config", p.login}, args...)...)
}

// must is cli for a command that has to work.
func (p *person) must(args ...string) string {
	p.t.Helper()
	out, err := p.cli(args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// decoded is must for the one document that a command prints.
func (p *person) decoded(into any, args ...string) {
	p.t.Helper()
	if err := json.Unmarshal([]byte(p.must(append([]string{"--json"}, args...)...)), into); err != nil {
		p.t.Fatal(err)
	}
}

// exitCode of a command that failed.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// answer is what bare HTTP brings back.
type answer struct {
	status int
	body   string
}

// post calls a method of the API as a client of any language would.
func (p *person) post(method, body string) answer {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.url+"/bivouac.v1."+method, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer{res.StatusCode, string(b)}
}

// submit gives an agent a prompt through the command line and does not wait:
// flags say which agent, session or workspace.
func (p *person) submit(command, prompt string, flags ...string) submitted {
	p.t.Helper()
	var turn submitted
	p.decoded(&turn, append(append([]string{command, "--detach"}, flags...), prompt)...)
	return turn
}

func (p *person) turn(id string) *apiv1.Turn {
	p.t.Helper()
	res, err := p.api.Turns.GetTurn(p.t.Context(), &apiv1.GetTurnRequest{TurnId: id})
	if err != nil {
		p.t.Fatal(err)
	}
	return res.GetTurn()
}

// ended waits for a turn's end.
func (p *person) ended(id string) *apiv1.Turn {
	p.t.Helper()
	var turn *apiv1.Turn
	await(p.t, "the end of turn "+id, func() error {
		if turn = p.turn(id); turn.GetEndedAt() == nil {
			return fmt.Errorf("it is %s, attempts %v", turn.GetState(), turn.GetAttempts())
		}
		return nil
	})
	return turn
}

// completed is ended for a turn that has to work.
func (p *person) completed(id string) *apiv1.Turn {
	p.t.Helper()
	turn := p.ended(id)
	if turn.GetState() != "COMPLETED" {
		p.t.Fatalf("turn %s is %s (%s): %s", id, turn.GetState(), turn.GetReason(), turn.GetMessage())
	}
	return turn
}

// hasEvent says that something is recorded of a turn.
func (p *person) hasEvent(turn, kind string) error {
	res, err := p.api.Events.ListEvents(p.t.Context(), &apiv1.ListEventsRequest{TurnId: turn, Limit: 500})
	if err != nil {
		return err
	}
	for _, e := range res.GetEvents() {
		if e.GetType() == kind {
			return nil
		}
	}
	return fmt.Errorf("turn %s has no event %s", turn, kind)
}

// project is a git folder with these files, committed.
func (p *person) project(name string, files map[string]string) string {
	p.t.Helper()
	dir := filepath.Join(p.home, name)
	for file, text := range files {
		p.write(filepath.Join(dir, file), text, 0o644)
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@example.test", "commit", "-qm", "first"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			p.t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	return dir
}

// addEdge joins a machine of this person and waits until it is connected.
func (p *person) addEdge(cfg stack.EdgeConfig) *stack.Edge {
	p.t.Helper()
	cfg.Owner = p.api
	e, err := p.AddEdge(p.t.Context(), cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	return e
}

// await tries again until it works, for as long as everything may take here.
func await(t *testing.T, what string, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("waited for %s: %v", what, err)
		}
		pause(ctx, 5*time.Millisecond)
	}
}

// notFound is the exit code of something that is not there.
var notFound = protocol.CodeNotFound.ExitCode()

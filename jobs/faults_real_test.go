//go:build linux

package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/jobs"
	"bivouac/jobs/jobstest"
	"bivouac/jobs/workload"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
)

// otherTenant is of another server.
const otherTenant = "ten_01jdv3k8x0q6v9w2m4t7y5z1ac"

// lines are what was logged.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

// byServer is the configuration of a server with a token as setup makes it, in its file.
func byServer(t *testing.T, s *nomadserver.Server) jobs.Config {
	t.Helper()
	file, _ := s.Token(t, "server", site.ServerRules())
	c := admin(t, s)
	c.Token, c.TokenFile, c.Rules = "", file, rules
	return c
}

// watch runs a watch for the rest of the test, and returns what it logs.
func watch(t *testing.T, c jobs.Config) (*jobs.Watch, *lines) {
	t.Helper()
	said := &lines{}
	w := jobs.NewWatch(c, slog.New(slog.NewTextHandler(said, nil)))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return w, said
}

// nodeSays waits until that is said of the node of a machine; empty: nothing.
func nodeSays(t *testing.T, w *jobs.Watch, node, words string) {
	t.Helper()
	until(t, fmt.Sprintf("%q of the node", words), func() error {
		s, _ := w.Standing(machineOf(node))
		if (words == "") != (s.Text == "") || !strings.Contains(s.Text, words) {
			return errors.New("it says: " + s.Text)
		}
		return nil
	})
}

// The token's file is read anew for each question: a token that is wrong, has expired or
// lacks a right is told apart, with what mends it, and one that is put in its place counts
// without a start of the server.
func TestTokens(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := nomadserver.Start(t, p)
		setUp(t, s)
		node := s.AddClient(t, nomadserver.ClientConfig{Name: "alpha", Pool: "agents"})
		c := byServer(t, s)
		good, err := os.ReadFile(c.TokenFile)
		if err != nil {
			t.Fatal(err)
		}
		write := func(token string) {
			t.Helper()
			if err := os.WriteFile(c.TokenFile, []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		short, _, err := s.Root().ACLTokens().Create(&api.ACLToken{Name: "short", Type: "client", Policies: []string{"server"}, ExpirationTTL: 2 * time.Second}, nil)
		if err != nil {
			t.Fatal(err)
		}
		blind, _ := s.Token(t, "blind", "namespace \"agents\" {\n capabilities = [\"list-jobs\", \"read-job\"]\n}\n")
		deaf, _ := s.Token(t, "deaf", "node {\n policy = \"read\"\n}\n")
		read := func(file string) string {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		w, said := watch(t, c)
		nodeSays(t, w, node.Node, "")
		for _, bad := range []struct {
			name, token, check string
			words              []string
		}{
			{"wrong", "11111111-2222-3333-4444-555555555555", "nomad.token", []string{"knows this token no more", "nomad acl token create"}},
			{"expired", short.SecretID, "nomad.token", []string{"expired", "nomad acl token create"}},
			{"not a token", "two words", "nomad.token", []string{"does not hold one token"}},
			{"without nodes", read(blind), "nomad.nodes", []string{`the token "blind" (accessor `, `policies blind)`, `lacks node { policy = "read" }`, "nomad acl token create -name bivouac-server"}},
			{"without jobs", read(deaf), "nomad.jobs", []string{`lacks namespace "agents"`, "read-job", "policies deaf)", "nomad acl token create -name bivouac-server"}},
		} {
			write(bad.token)
			until(t, bad.name, func() error {
				f := findings(t, c)[bad.check]
				for _, word := range bad.words {
					if f.Level == finding.OK || !strings.Contains(fmt.Sprint(f), word) {
						return fmt.Errorf("%+v", f)
					}
				}
				return nil
			})
			said.forget()
			eligible(t, s, node, false) // the watch asks, and is refused
			until(t, bad.name+" in the log", func() error {
				if text := said.text(); !strings.Contains(text, "nothing is taken from the choice") || strings.Contains(text, strings.TrimSpace(bad.token)) {
					return errors.New(text)
				}
				return nil
			})
			write(string(good))
			nodeSays(t, w, node.Node, "ineligible")
			eligible(t, s, node, true)
			nodeSays(t, w, node.Node, "")
		}
		for check, f := range findings(t, c) {
			if f.Level == finding.Problem {
				t.Errorf("with the good one, %s: %+v", check, f)
			}
		}
	})
}

// Nomad is down when the server starts, comes, goes, and comes back: nothing is said of
// nodes that it did not say, and what it says counts when it is there.
func TestNomadAway(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := nomadserver.Start(t, p)
		setUp(t, s)
		node := s.AddClient(t, nomadserver.ClientConfig{Name: "alpha", Pool: "agents"})
		c := byServer(t, s)
		s.Stop(t)
		w, said := watch(t, c)
		until(t, "its word on that", func() error {
			if !strings.Contains(said.text(), "does not answer") {
				return errors.New(said.text())
			}
			return nil
		})
		if n, task := w.Standing(machineOf(node.Node)); n.Text != "" || task.Text != "" {
			t.Errorf("down at the start: %+v %+v", n, task)
		}
		if bad := saidOf(w.Absent(tenant, nil, "ops"), "has not answered lately", "bivouac doctor"); bad != "" {
			t.Error(bad)
		}
		if f := findings(t, c)["nomad"]; f.Level != finding.Problem || !strings.Contains(f.What, "does not answer") {
			t.Errorf("%+v", f)
		}
		s.Start(t)
		until(t, "its first word", func() error {
			if bad := saidOf(w.Absent(tenant, nil, "ops"), "no job bivouac-runner", "nomad job run"); bad != "" {
				return errors.New(bad)
			}
			return nil
		})
		until(t, "its leader's readiness", func() error {
			_, err := s.Root().Nodes().ToggleEligibility(node.Node, false, nil)
			return err
		})
		nodeSays(t, w, node.Node, "ineligible")
		s.Kill(t)
		if n, _ := w.Standing(machineOf(node.Node)); !strings.Contains(n.Text, "ineligible") {
			t.Errorf("down in the middle: %+v", n)
		}
		s.Start(t)
		until(t, "its leader's readiness", func() error {
			_, err := s.Root().Nodes().ToggleEligibility(node.Node, true, nil)
			return err
		})
		nodeSays(t, w, node.Node, "")
	})
}

// A Nomad without a leader answers, and knows nothing: that is said as it is, and no
// identity is taken or refused for good on its word.
func TestNoLeader(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := nomadserver.StartLeaderless(t, p)
		c := jobs.Config{Address: s.Address(), CAFile: s.CAFile(), Token: "11111111-2222-3333-4444-555555555555", Rules: rules}
		err := c.Ask(func(n *jobs.Nomad) error { _, err := n.Diff(t.Context(), site); return err })
		if protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "nomad server members") {
			t.Errorf("%s %v", protocol.CodeOf(err), err)
		}
		if f := findings(t, c)["nomad"]; f.Level != finding.Problem || !strings.Contains(f.Mend, "is there a leader?") {
			t.Errorf("%+v", f)
		}
		judge := workload.NewJudge(workload.NewKeys(c.Address, c.Client), rules)
		if _, _, err := judge.Judge(t.Context(), jobstest.NewSigner(t).Sign(t, "one", jobstest.Claims("0c4b1a52-7e1a-3f65-9c1e-5a2b6d7e8f90"), nil)); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("an identity: %v", err)
		}
	})
}

// Nomad's events are cut off after so many, and the newest may be lost: the list is what
// counts. A task that never begins is pending, and lost with its node; a node that is purged
// is gone.
func TestEventsAndLosses(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := nomadserver.Start(t, p)
		setUp(t, s)
		node := s.AddClient(t, nomadserver.ClientConfig{Name: "alpha", Pool: "agents"})
		w, _ := watch(t, byServer(t, s))
		nodeSays(t, w, node.Node, "")
		for i := range 251 { // more than Nomad keeps
			eligible(t, s, node, i%2 == 1)
		}
		nodeSays(t, w, node.Node, "ineligible")
		eligible(t, s, node, true)
		nodeSays(t, w, node.Node, "")

		job := holder("/bin/sleep")
		job.TaskGroups[0].Disconnect = nil
		job.TaskGroups[0].Tasks[0].Artifacts = []*api.TaskArtifact{{GetterSource: new(neverServed(t))}}
		register(t, s, job)
		taskSays := func(words string) {
			t.Helper()
			until(t, words, func() error {
				if _, task := w.Standing(machineOf(node.Node)); !strings.Contains(task.Text, words) || task.Remedy == "" {
					return fmt.Errorf("%+v", task)
				}
				return nil
			})
		}
		taskSays("has not started it on its node yet: Client is downloading artifacts")
		if bad := saidOf(w.Absent(tenant, nil, "ops"), "is on Nomad's node alpha: Nomad has not started it on its node yet", "nomad alloc status"); bad != "" {
			t.Error(bad)
		}
		node.Kill(t)
		taskSays("lost it with its node")
		nodeSays(t, w, node.Node, "is down")
		node.Remove(t)
		nodeSays(t, w, node.Node, "purged")
	})
}

// neverServed is a file that is asked for and never comes.
func neverServed(t *testing.T) string {
	t.Helper()
	end := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-end:
		}
	}))
	t.Cleanup(func() { close(end); s.Close() })
	return s.URL + "/file"
}

// Two servers share a namespace, each with a job, an audience and a tenant of its own:
// neither takes the identities of the other's runners, nor says anything of them.
func TestTwoServers(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := nomadserver.Start(t, p)
		setUp(t, s)
		node := s.AddClient(t, nomadserver.ClientConfig{Name: "alpha", Pool: "agents"})
		ours, other := byServer(t, s), admin(t, s)
		other.Rules = []workload.Rule{{Name: "agents", Audience: "other.example.org", Namespace: "agents", Job: "other-runner", Task: "edge", Tenant: otherTenant, Principal: "ops"}}
		job := holder("/bin/sleep")
		job.ID, job.Name = new("other-runner"), new("other-runner")
		job.TaskGroups[0].Tasks[0].Identities[0].Audience = []string{"other.example.org"}
		register(t, s, job)
		token := identityOn(t, node)
		judge := func(c jobs.Config) error {
			_, _, err := workload.NewJudge(workload.NewKeys(c.Address, c.Client), c.Rules).Judge(t.Context(), token)
			return err
		}
		if err := judge(other); err != nil {
			t.Errorf("its own server: %v", err)
		}
		if err := judge(ours); protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("the other server: %v", err)
		}
		mine, _ := watch(t, ours)
		theirs, _ := watch(t, other)
		until(t, "a runner of its own", func() error {
			if bad := saidOf(theirs.Absent(otherTenant, nil, "ops"), "it runs, and has not enrolled yet", "nomad alloc logs"); bad != "" {
				return errors.New(bad)
			}
			if bad := saidOf(mine.Absent(tenant, nil, "ops"), "no job bivouac-runner", "nomad job run"); bad != "" {
				return errors.New(bad)
			}
			return nil
		})
		if said := mine.Absent(otherTenant, nil, "ops"); said != (jobs.Standing{}) {
			t.Errorf("the other's tenant is told %+v", said)
		}
	})
}

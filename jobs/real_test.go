//go:build linux

package jobs_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/jobs"
	"bivouac/jobs/workload"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
)

// site is what the tests set up.
var site = jobs.Site{Namespace: "agents", Pools: []string{"agents"}}

// admin is the configuration of a cluster's admin.
func admin(t *testing.T, s *nomadserver.Server) jobs.Config {
	t.Helper()
	c, err := jobs.Admin(env(map[string]string{"NOMAD_ADDR": s.Address(), "NOMAD_CACERT": s.CAFile(), "NOMAD_TOKEN": s.Management()}))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// setUp makes what setup makes.
func setUp(t *testing.T, s *nomadserver.Server) {
	t.Helper()
	err := admin(t, s).Ask(func(n *jobs.Nomad) error {
		all, err := n.Diff(t.Context(), site)
		if err != nil {
			return err
		}
		return n.Apply(t.Context(), all, func(jobs.Difference) {})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// until waits until it is so.
func until(t *testing.T, what string, is func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := is()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// diff is what setup would make, as titles.
func diff(t *testing.T, c jobs.Config) (titles []string, err error) {
	t.Helper()
	err = c.Ask(func(n *jobs.Nomad) error {
		all, err := n.Diff(t.Context(), site)
		for _, d := range all {
			titles = append(titles, d.Title())
		}
		return err
	})
	return titles, err
}

// Setup makes what is missing once, finds what was changed by hand, and leaves what else
// stands there. Each token that may not is told what it lacks.
func TestSetup(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := nomadserver.Start(t, p)
		c := admin(t, s)
		want := []string{"namespace agents", "node pool agents", "policy bivouac-server", "policy bivouac-deploy"}
		if got, err := diff(t, c); err != nil || !slices.Equal(got, want) {
			t.Fatalf("%q, %v", got, err)
		}
		setUp(t, s)
		if got, err := diff(t, c); err != nil || len(got) != 0 {
			t.Errorf("a second time: %q, %v", got, err)
		}
		ns, _, err := s.Root().Namespaces().Info("agents", nil)
		if err != nil || ns.RequiredExtraClaims["node_id"] != "${node.id}" {
			t.Fatalf("%+v, %v", ns, err)
		}
		ns.RequiredExtraClaims = map[string]string{"node_id": "${node.idd}", "team": "red"}
		ns.Meta = map[string]string{"owner": "somebody"}
		if _, err := s.Root().Namespaces().Register(ns, nil); err != nil {
			t.Fatal(err)
		}
		if got, err := diff(t, c); err != nil || !slices.Equal(got, want[:1]) {
			t.Errorf("changed by hand: %q, %v", got, err)
		}
		setUp(t, s)
		if ns, _, err = s.Root().Namespaces().Info("agents", nil); err != nil || ns.RequiredExtraClaims["node_id"] != "${node.id}" || ns.RequiredExtraClaims["team"] != "red" || ns.Meta["owner"] != "somebody" {
			t.Errorf("%+v, %v", ns, err)
		}
		weak, _ := s.Token(t, "weak", `node { policy = "read" }`)
		c.Token, c.TokenFile = "", weak
		if _, err := diff(t, c); protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "lacks") {
			t.Errorf("a token that may not: %v", err)
		}
		if err := os.WriteFile(weak, []byte("11111111-2222-3333-4444-555555555555"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := diff(t, c); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
			t.Errorf("a token that is none: %v", err)
		}
		if err := os.WriteFile(weak, []byte(s.Management()), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := diff(t, c); err != nil {
			t.Errorf("the file holds another token now: %v", err)
		}
		s.Stop(t)
		if _, err := diff(t, c); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("Nomad is down: %v", err)
		}
		s.Start(t)
		if _, err := diff(t, c); err != nil {
			t.Errorf("and back: %v", err)
		}
	})
}

// Every file that an operator runs is taken by the real program.
func TestJobFiles(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := nomadserver.Start(t, p)
		setUp(t, s)
		files, err := filepath.Glob("*.nomad.hcl")
		if err != nil || len(files) != 3 {
			t.Fatalf("%q %v", files, err)
		}
		vars := map[string][]string{
			"runner.nomad.hcl": {"-var", "server=https://bivouac.example.org:7401", "-var", "fingerprint=" + strings.Repeat("ab", 32), "-var", "audience=bivouac.example.org"},
			"server.nomad.hcl": {"-var", "code_file=/etc/bivouac/server-code"},
		}
		for _, f := range files {
			path, err := filepath.Abs(f)
			if err != nil {
				t.Fatal(err)
			}
			out, err := s.Run(t, append(append([]string{"job", "validate"}, vars[f]...), path)...)
			if err != nil || strings.Contains(out, "Warning") {
				t.Errorf("%s: %v\n%s", f, err, out)
			}
		}
		if out, err := s.Run(t, "job", "validate", must(t, "runner.nomad.hcl")); err == nil {
			t.Errorf("without its variables: %s", out)
		}
	})
}

func must(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// holder is a job whose task holds an identity, as that of runners does.
func holder(command string) *api.Job {
	job := api.NewSystemJob("bivouac-runner", "bivouac-runner", "global", 50)
	namespace, pool := "agents", "agents"
	job.Namespace, job.NodePool, job.Datacenters = &namespace, &pool, []string{"*"}
	task := api.NewTask("edge", "raw_exec").SetConfig("command", command).SetConfig("args", []string{"3600"})
	cpu, memory := 50, 32
	task.Resources = &api.Resources{CPU: &cpu, MemoryMB: &memory}
	task.Identities = []*api.WorkloadIdentity{{Name: "bivouac", Audience: []string{"bivouac.example.org"}, File: true, TTL: 15 * time.Minute, ChangeMode: "noop"}}
	attempts, delay, mode, interval := 0, time.Second, "fail", time.Minute
	group := api.NewTaskGroup("runner", 1).AddTask(task)
	group.RestartPolicy = &api.RestartPolicy{Attempts: &attempts, Delay: &delay, Mode: &mode, Interval: &interval}
	group.Disconnect = &api.DisconnectStrategy{LostAfter: new(8760 * time.Hour), Replace: new(false), Reconcile: new(api.ReconcileOptionKeepOriginal)}
	return job.AddTaskGroup(group)
}

func register(t *testing.T, s *nomadserver.Server, job *api.Job) {
	t.Helper()
	if _, _, err := s.Root().Jobs().Register(job, &api.WriteOptions{Namespace: "agents"}); err != nil {
		t.Fatal(err)
	}
}

// identityOn reads the file that Nomad wrote for the task on a node.
func identityOn(t *testing.T, c *nomadserver.Client) (token string) {
	t.Helper()
	until(t, "the identity's file", func() error {
		files, err := filepath.Glob(c.Path("alloc", "*", "edge", "secrets", "nomad_bivouac.jwt"))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("not there: %v", err)
		}
		b, err := os.ReadFile(files[0])
		token = string(b)
		if err == nil && token == "" {
			err = fmt.Errorf("empty")
		}
		return err
	})
	return token
}

// What a real Nomad signs for a task is judged by its real keys: it names the node. In a
// namespace without the claims it names none, and is refused.
func TestIdentity(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := nomadserver.Start(t, p)
		c := s.AddClient(t, nomadserver.ClientConfig{Name: "alpha", Pool: "agents"})
		if _, err := s.Root().Namespaces().Register(&api.Namespace{Name: "agents"}, nil); err != nil {
			t.Fatal(err)
		}
		cfg := admin(t, s)
		judge := workload.NewJudge(workload.NewKeys(cfg.Address, cfg.Client), rules)
		register(t, s, holder("/bin/sleep"))
		bare := identityOn(t, c)
		if _, _, err := judge.Judge(t.Context(), bare); protocol.CodeOf(err) != protocol.CodeUnauthenticated || !strings.Contains(err.Error(), "bivouac nomad setup --apply") {
			t.Errorf("without the claims: %v", err)
		}
		if _, _, err := s.Root().Jobs().Deregister("bivouac-runner", true, &api.WriteOptions{Namespace: "agents"}); err != nil {
			t.Fatal(err)
		}
		setUp(t, s)
		until(t, "the first allocation's end", func() error {
			if files, _ := filepath.Glob(c.Path("alloc", "*")); len(files) > 0 {
				_ = s.Root().System().GarbageCollect()
				return fmt.Errorf("%q", files)
			}
			return nil
		})
		register(t, s, holder("/bin/sleep"))
		token := identityOn(t, c)
		rule, id, err := judge.Judge(t.Context(), token)
		if err != nil || rule.Name != "agents" || id.Node != c.Node || id.Pool != "agents" {
			t.Errorf("%+v %+v %v", rule, id, err)
		}
		elsewhere := workload.NewJudge(workload.NewKeys(cfg.Address, cfg.Client), []workload.Rule{{Audience: "other", Namespace: "agents", Job: "bivouac-runner", Task: "edge"}})
		if _, _, err := elsewhere.Judge(t.Context(), token); protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("another audience: %v", err)
		}
		t.Logf("claims: %s", payload(t, token))
	})
}

// payload shows the claims without the token.
func payload(t *testing.T, token string) string {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(c)
}

// liveWatch is one that runs until the test ends, with the server's own token, and what
// it is answered.
func liveWatch(t *testing.T, s *nomadserver.Server) (*jobs.Watch, *recorder) {
	t.Helper()
	file, _ := s.Token(t, "server", site.ServerRules())
	cfg := admin(t, s)
	cfg.Token, cfg.TokenFile, cfg.Rules = "", file, rules
	carrier, err := cfg.Client()
	if err != nil {
		t.Fatal(err)
	}
	kept := &recorder{to: carrier.Transport}
	cfg.Transport = kept
	w := jobs.NewWatch(cfg, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return w, kept
}

// The watch says what Nomad says of a node, and what has become of the task; each goes
// when its cause does.
func TestWatch(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := nomadserver.Start(t, p)
		c := s.AddClient(t, nomadserver.ClientConfig{Name: "alpha", Pool: "agents"})
		setUp(t, s)
		w, kept := liveWatch(t, s)
		machine := machineOf(c.Node)
		causes := map[string]func(){
			"failed task":  func() { register(t, s, holder("/bin/no-such-program")) },
			"running task": func() { register(t, s, holder("/bin/sleep")) },
			"ineligible":   func() { eligible(t, s, c, false) },
			"eligible":     func() { eligible(t, s, c, true) },
			"disconnected": func() { c.Kill(t) },
			"back":         func() { c.Start(t) },
			"down":         func() { c.Kill(t) },
			"up again":     func() { c.Start(t) },
			"drained": func() {
				if _, err := s.Root().Nodes().UpdateDrain(c.Node, &api.DrainSpec{Deadline: time.Minute}, false, nil); err != nil {
					t.Fatal(err)
				}
			},
		}
		for _, state := range watched {
			causes[state.name]()
			caused := time.Now()
			until(t, state.name, func() error {
				n, a := w.Standing(machine)
				if !strings.Contains(n.Text, state.node) || (state.node == "") != (n.Text == "") || !strings.Contains(a.Text, state.task) || (state.task == "") != (a.Text == "") {
					return fmt.Errorf("node %q, task %q", n.Text, a.Text)
				}
				return nil
			})
			t.Logf("bench name=nomad_word_%s value=%d unit=ms", strings.ReplaceAll(state.name, " ", "_"), time.Since(caused).Milliseconds())
			kept.save(t, state.name, c.Path(".."))
		}
	})
}

func eligible(t *testing.T, s *nomadserver.Server, c *nomadserver.Client, is bool) {
	t.Helper()
	if _, err := s.Root().Nodes().ToggleEligibility(c.Node, is, nil); err != nil {
		t.Fatal(err)
	}
}

// The doctor's findings are those of a cluster that is as it should be, and each names
// what is wrong with another.
func TestCheck(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		s := nomadserver.Start(t, p)
		c := admin(t, s)
		levels := func(find func(*finding.Report)) map[string]finding.Finding {
			r := finding.From("here")
			find(r)
			all := map[string]finding.Finding{}
			for _, f := range r.All {
				if all[f.Check].Level != finding.Problem {
					all[f.Check] = f
				}
			}
			return all
		}
		every := func() map[string]finding.Finding {
			return levels(func(r *finding.Report) { c.ExamineAll(t.Context(), r, site) })
		}
		if before := every(); before["nomad.site"].Level != finding.Problem || before["nomad.nodes"].Level != finding.Warning {
			t.Errorf("before setup: %+v", before)
		}
		setUp(t, s)
		s.AddClient(t, nomadserver.ClientConfig{Name: "alpha", Pool: "agents"})
		for check, f := range every() {
			if f.Level != finding.OK {
				t.Errorf("%s: %+v", check, f)
			}
		}
		file, _ := s.Token(t, "server", site.ServerRules())
		own := c
		own.Token, own.TokenFile, own.Rules = "", file, rules
		for check, f := range levels(func(r *finding.Report) { own.Examine(t.Context(), r) }) {
			if f.Level != finding.OK {
				t.Errorf("by the server's token, %s: %+v", check, f)
			}
		}
		own.MaxAllocations = 50
		if f := levels(func(r *finding.Report) { own.Examine(t.Context(), r) })["nomad.allocations"]; f.Level != finding.OK || f.What == "" {
			t.Errorf("allocations: %+v", f)
		}
		for _, right := range []string{"register-job", "purge-job"} { // the right to purge is also that to end
			less, _ := s.Token(t, "less", strings.Replace(site.ServerRules(), `, "`+right+`"`, "", 1))
			own.TokenFile = less
			if f := levels(func(r *finding.Report) { own.Examine(t.Context(), r) })["nomad.allocations"]; f.Level != finding.Warning || !strings.Contains(f.What, `"`+right+`"`) {
				t.Errorf("without %s: %+v", right, f)
			}
		}
		if jobs, _, err := s.Root().Jobs().List(&api.QueryOptions{Namespace: "*"}); err != nil || len(jobs) != 0 {
			t.Errorf("trying has made %v, %v", jobs, err)
		}
		weak, _ := s.Token(t, "weak", `namespace "other" { policy = "read" }`)
		own.TokenFile = weak
		if all := levels(func(r *finding.Report) { own.Examine(t.Context(), r) }); all["nomad.nodes"].Level != finding.Problem || all["nomad.jobs"].Level != finding.Problem ||
			!strings.Contains(all["nomad.nodes"].What, `node { policy = "read" }`) {
			t.Errorf("by a weak one: %+v", all)
		}
		s.Stop(t)
		if all := every(); all["nomad"].Level != finding.Problem {
			t.Errorf("down: %+v", all)
		}
	})
}

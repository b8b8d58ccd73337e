//go:build linux

package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
)

// control runs server and broker on a node of Nomad's, as the guide in jobs/ says: by the
// product's job files, and with a token that may run them and no more.
type control struct {
	t      *testing.T
	nomad  *nomadserver.Server
	node   *nomadserver.Client
	deploy string // token of who runs jobs
	token  string // file of the server's own
}

// newDeployed is a deployment of which every part is a job.
func newDeployed(t *testing.T, p engine.Program, cfg stack.Config) (*fleet, *control) {
	t.Helper()
	bin, err := stack.Build()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := &control{t: t, nomad: nomadserver.Start(t, p), token: filepath.Join(dir, "nomad-token")}
	setUpNomad(t, c.nomad, bin, dir)
	c.deploy = newToken(t, c.nomad, "bivouac-deploy")
	if err := os.WriteFile(c.token, []byte(newToken(t, c.nomad, "bivouac-server")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	volumes := map[string]string{}
	for _, part := range []string{"broker", "server"} {
		volumes["bivouac-"+part] = filepath.Join(dir, part)
		if err := os.Mkdir(filepath.Join(dir, part), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c.node = c.nomad.AddClient(t, nomadserver.ClientConfig{Name: "control", Volumes: volumes})
	cfg.Bin, cfg.Dir, cfg.Jobs = bin, dir, c
	s, err := stack.Start(t.Context(), cfg)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, c.node.TaskLog("*", "broker"), c.node.TaskLog("*", "server"))
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, part := range []string{"broker", "server"} {
				t.Log(c.node.TaskLog("*", part), c.state("bivouac-"+part))
			}
			t.Log(c.node.Log())
		}
	})
	return &fleet{person: first(t, s), nomad: c.nomad, state: s.Path("nodes")}, c
}

// setUpNomad makes what the product's own command makes.
func setUpNomad(t *testing.T, n *nomadserver.Server, bin, home string) {
	t.Helper()
	setup := exec.Command(filepath.Join(bin, "bivouac"), "nomad", "setup", "--apply")
	setup.Env = []string{"HOME=" + home, "NOMAD_ADDR=" + n.Address(), "NOMAD_CACERT=" + n.CAFile(), "NOMAD_TOKEN=" + n.Management()}
	if out, err := setup.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// newToken of a policy that setup made.
func newToken(t *testing.T, n *nomadserver.Server, policy string) string {
	t.Helper()
	out, err := n.Run(t, "acl", "token", "create", "-name", policy, "-policy", policy, "-t", "{{.SecretID}}")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(out)
}

// job runs one of the product's files.
func (c *control) job(part string, vars map[string]string) error {
	args := []string{"job", "run", "-detach"}
	for name, value := range vars {
		args = append(args, "-var", name+"="+value)
	}
	out, err := c.nomad.RunAs(c.deploy, append(args, "../../jobs/"+part+".nomad.hcl")...)
	if err != nil {
		return fmt.Errorf("job %s: %w\n%s", part, err, out)
	}
	return nil
}

// Broker runs the broker as a job.
func (c *control) Broker(_ context.Context, s *stack.Stack) error {
	_, _, address := s.Addresses()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	err = c.job("broker", map[string]string{"program": s.Program("bivouac-broker"), "data": s.Path("broker"), "address": host, "port": port})
	if err == nil {
		c.begun("broker")
	}
	return err
}

// Server runs the server as a job, with a nomad block from its first start on: bootstrap
// says whose the machines are.
func (c *control) Server(_ context.Context, s *stack.Stack, bootstrap string) error {
	tenant := regexp.MustCompile(`ten_[0-9a-z]+`).FindString(bootstrap)
	public, runners, broker := s.Addresses()
	block := nomadBlock(c.nomad, c.token, tenant)
	file := fmt.Sprintf("data_dir = %q\npublic  { address = %q }\nrunners { address = %q }\nbroker  { address = %q }\n%s", s.Path("server"), public, runners, broker, block)
	if err := os.WriteFile(s.Path("server.hcl"), []byte(file), 0o600); err != nil {
		return err
	}
	vars := map[string]string{"program": s.Program("bivouac-server"), "config": s.Path("server.hcl"), "data": s.Path("server"), "code_file": s.Path("server-code")}
	for name, address := range map[string]string{"api_port": public, "runners_port": runners} {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return err
		}
		vars[name] = port
	}
	err := c.job("server", vars)
	if err == nil {
		c.begun("server")
	}
	return err
}

// begun waits until a part runs.
func (c *control) begun(part string) {
	c.t.Helper()
	await(c.t, "an allocation of "+part+" that runs", func() error {
		_, err := c.running("bivouac-" + part)
		return err
	})
}

// running is the allocation of a job that runs.
func (c *control) running(job string) (id string, err error) {
	all, _, err := c.nomad.Root().Jobs().Allocations(job, false, &api.QueryOptions{Namespace: "agents"})
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(all, func(a *api.AllocationListStub) bool {
		return a.ClientStatus == api.AllocClientStatusRunning && a.DesiredStatus == api.AllocDesiredStatusRun
	})
	if i < 0 {
		return "", fmt.Errorf("no allocation of %s runs", job)
	}
	return all[i].ID, nil
}

// state of a job and of its newest allocation, in Nomad's words.
func (c *control) state(job string) string {
	all, _, err := c.nomad.Root().Jobs().Allocations(job, false, &api.QueryOptions{Namespace: "agents"})
	text := fmt.Sprintln(job, err)
	for _, a := range all {
		text += fmt.Sprintf("%s %s/%s\n", a.ID, a.DesiredStatus, a.ClientStatus)
		for _, task := range a.TaskStates {
			for _, e := range task.Events {
				text += fmt.Sprintln("  ", time.Unix(0, e.Time).UTC().Format(time.StampMilli), e.Type, e.DisplayMessage)
			}
		}
	}
	return text
}

// anew stops a job and runs it again, and waits for another allocation of it.
func (c *control) anew(s *stack.Stack, part string, run func() error) {
	c.t.Helper()
	before, err := c.running("bivouac-" + part)
	if err != nil {
		c.t.Fatal(err)
	}
	if out, err := c.nomad.RunAs(c.deploy, "job", "stop", "-detach", "-namespace", "agents", "bivouac-"+part); err != nil {
		c.t.Fatalf("%v\n%s", err, out)
	}
	await(c.t, "the end of the allocation of "+part, func() error {
		if id, err := c.running("bivouac-" + part); err == nil {
			return fmt.Errorf("%s runs", id)
		}
		return nil
	})
	if err := run(); err != nil {
		c.t.Fatal(err)
	}
	c.back(s, part, before)
}

// back waits until another allocation runs, and the deployment answers.
func (c *control) back(s *stack.Stack, part, before string) {
	c.t.Helper()
	await(c.t, "another allocation of "+part, func() error {
		id, err := c.running("bivouac-" + part)
		if err == nil && id == before {
			err = fmt.Errorf("it is still %s", id)
		}
		return err
	})
	c.answers(s)
}

// answers waits until the server is ready, and reaches the broker.
func (c *control) answers(s *stack.Stack) {
	c.t.Helper()
	c.begun("server")
	await(c.t, "the server", func() error { return s.Ready(c.t.Context()) })
	await(c.t, "the broker", func() error {
		_, err := s.API.Credentials.GetSealRecipient(c.t.Context(), &apiv1.GetSealRecipientRequest{})
		return err
	})
}

// processes of parts of the deployment, each by what tells it from every other.
func (f *fleet) processes(roles ...string) string {
	f.t.Helper()
	all, err := f.Running()
	if err != nil {
		f.t.Fatal(err)
	}
	var found []string
	for _, r := range all {
		if slices.Contains(roles, r.Role) {
			found = append(found, fmt.Sprintf("%s %d of %d", r.Role, r.PID, r.Started))
		}
	}
	slices.Sort(found)
	return strings.Join(found, ", ")
}

// explains waits until explain says all this of a turn.
func (f *fleet) explains(turn string, words ...string) {
	f.t.Helper()
	await(f.t, "explain", func() error {
		x := f.must("explain", turn)
		for _, w := range words {
			if !strings.Contains(x, w) {
				return fmt.Errorf("%q is not in:\n%s", w, x)
			}
		}
		return nil
	})
}

// tenant of who set the deployment up.
func (f *fleet) tenant() string {
	f.t.Helper()
	who, err := f.API.Principals.WhoAmI(f.t.Context(), &apiv1.WhoAmIRequest{})
	if err != nil {
		f.t.Fatal(err)
	}
	return who.GetPrincipal().GetTenantId()
}

// fingerprint of the deployment's root, which is in the broker's keyring.
func (f *fleet) fingerprint() string {
	f.t.Helper()
	who, err := f.API.Principals.WhoAmI(f.t.Context(), &apiv1.WhoAmIRequest{})
	if err != nil {
		f.t.Fatal(err)
	}
	return who.GetRootFingerprint()
}

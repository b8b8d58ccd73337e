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
	c.deploy = c.newToken("bivouac-deploy")
	if err := os.WriteFile(c.token, []byte(c.newToken("bivouac-server")+"\n"), 0o600); err != nil {
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
			t.Log(c.node.TaskLog("*", "broker"), c.node.TaskLog("*", "server"))
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
func (c *control) newToken(policy string) string {
	c.t.Helper()
	out, err := c.nomad.Run(c.t, "acl", "token", "create", "-name", policy, "-policy", policy, "-t", "{{.SecretID}}")
	if err != nil {
		c.t.Fatalf("%v\n%s", err, out)
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
	return c.job("broker", map[string]string{"program": s.Program("bivouac-broker"), "data": s.Path("broker"), "address": host, "port": port})
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
	return c.job("server", vars)
}

// running is the allocation of a job that runs, and when its task began.
func (c *control) running(job string) (id, began string, err error) {
	all, _, err := c.nomad.Root().Jobs().Allocations(job, false, &api.QueryOptions{Namespace: "agents"})
	if err != nil {
		return "", "", err
	}
	i := slices.IndexFunc(all, func(a *api.AllocationListStub) bool {
		return a.ClientStatus == api.AllocClientStatusRunning && a.DesiredStatus == api.AllocDesiredStatusRun
	})
	if i < 0 {
		return "", "", fmt.Errorf("no allocation of %s runs", job)
	}
	for _, task := range all[i].TaskStates {
		began = task.StartedAt.String()
	}
	return all[i].ID, began, nil
}

// anew stops a job and runs it again, and waits for another allocation of it.
func (c *control) anew(s *stack.Stack, part string, run func() error) {
	c.t.Helper()
	before, _, err := c.running("bivouac-" + part)
	if err != nil {
		c.t.Fatal(err)
	}
	if out, err := c.nomad.RunAs(c.deploy, "job", "stop", "-detach", "-namespace", "agents", "bivouac-"+part); err != nil {
		c.t.Fatalf("%v\n%s", err, out)
	}
	await(c.t, "the end of the allocation of "+part, func() error {
		if id, _, err := c.running("bivouac-" + part); err == nil {
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
		id, _, err := c.running("bivouac-" + part)
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
	if err := s.Ready(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	await(c.t, "the broker", func() error {
		_, err := s.API.Credentials.GetSealRecipient(c.t.Context(), &apiv1.GetSealRecipientRequest{})
		return err
	})
}

// tasks that run for parts of the deployment: allocations, and when each began.
func (c *control) tasks(parts ...string) (text string) {
	c.t.Helper()
	for _, part := range parts {
		await(c.t, "Nomad's word on "+part, func() error {
			id, began, err := c.running("bivouac-" + part)
			if err == nil {
				text += fmt.Sprintf("%s %s since %s\n", part, id, began)
			}
			return err
		})
	}
	return text
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

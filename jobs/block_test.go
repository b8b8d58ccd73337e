package jobs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/jobs"
)

const tenant = "ten_01jdv3k8x0q6v9w2m4t7y5z1ab"

func enrol(change func(*jobs.EnrolBlock)) *jobs.EnrolBlock {
	e := &jobs.EnrolBlock{Name: "agents", Namespace: "agents", Job: "bivouac-runner", Task: "edge", Audience: "bivouac.example.org", Tenant: tenant, Principal: "ops"}
	if change != nil {
		change(e)
	}
	return e
}

func env(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

// Each mistake is said with its place; without it the block is taken.
func TestBlockMistakes(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	good := func() jobs.Block {
		return jobs.Block{Address: "https://nomad.example.org:4646", TokenFile: file("token", "a-token\n", 0o600), Enrol: []*jobs.EnrolBlock{enrol(nil)}}
	}
	for says, change := range map[string]func(*jobs.Block){
		"nomad.address: it is missing":                func(b *jobs.Block) { b.Address = "" },
		"neither HTTPS nor on the loopback":           func(b *jobs.Block) { b.Address = "http://nomad.example.org:4646" },
		"is no address":                               func(b *jobs.Block) { b.Address = "https://nomad.example.org:4646/ui" },
		"ca_file: open":                               func(b *jobs.Block) { b.CAFile = filepath.Join(dir, "none") },
		"has no certificate in PEM form":              func(b *jobs.Block) { b.CAFile = file("ca", "x", 0o600) },
		"cert_file and key_file go together":          func(b *jobs.Block) { b.CertFile = "x" },
		"nomad.token_file: open":                      func(b *jobs.Block) { b.TokenFile = filepath.Join(dir, "none") },
		"does not hold one token":                     func(b *jobs.Block) { b.TokenFile = file("two", "a b", 0o600) },
		"chmod":                                       func(b *jobs.Block) { b.TokenFile = file("open", "a", 0o644) },
		"neither whose machines enrol":                func(b *jobs.Block) { b.TokenFile, b.Enrol = "", nil },
		`nomad.enrol "agents": namespace is empty`:    func(b *jobs.Block) { b.Enrol[0].Namespace = "" },
		`job "bivouac-*": it is one name`:             func(b *jobs.Block) { b.Enrol[0].Job = "bivouac-*" },
		"nomad.max_allocations: -1":                   func(b *jobs.Block) { b.MaxAllocations = new(-1) },
		"nomad.max_allocations: 1001":                 func(b *jobs.Block) { b.MaxAllocations = new(1001) },
		`program "bivouac-edge": it is a path`:        func(b *jobs.Block) { b.Enrol[0].Program = "bivouac-edge" },
		`state "/srv/${node.id}": it is a path`:       func(b *jobs.Block) { b.Enrol[0].State = "/srv/${node.id}" },
		"tenant:":                                     func(b *jobs.Block) { b.Enrol[0].Tenant = "local" },
		"there is a block of that name before it":     func(b *jobs.Block) { b.Enrol = append(b.Enrol, enrol(func(e *jobs.EnrolBlock) { e.Job = "other" })) },
		`it is about the same task as enrol "agents"`: func(b *jobs.Block) { b.Enrol = append(b.Enrol, enrol(func(e *jobs.EnrolBlock) { e.Name = "more" })) },
	} {
		b := good()
		if _, err := b.Config(env(nil)); err != nil {
			t.Fatalf("the twin of %q: %v", says, err)
		}
		change(&b)
		if _, err := b.Config(env(nil)); protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
	bad := jobs.Block{Address: "ftp://x", Enrol: []*jobs.EnrolBlock{enrol(func(e *jobs.EnrolBlock) { e.Task, e.Tenant = "", "" })}}
	if _, err := bad.Config(env(nil)); err == nil || strings.Count(err.Error(), "\n") < 3 {
		t.Errorf("all at once: %v", err)
	}
}

// What the block does not say of allocations is as the job file of runners has it.
func TestBlockAllocations(t *testing.T) {
	b := jobs.Block{Address: "https://nomad.example.org:4646", Enrol: []*jobs.EnrolBlock{enrol(nil)}}
	c, err := b.Config(env(nil))
	if err != nil || c.MaxAllocations != jobs.DefaultAllocations || c.Rules[0].ProgramPath() != "/usr/local/bin/bivouac-edge" || c.Rules[0].StatePath() != "/var/lib/bivouac-edge" {
		t.Errorf("%+v, %v", c, err)
	}
	b.MaxAllocations, b.Enrol[0].Program, b.Enrol[0].State = new(0), "/opt/edge", "/srv/edge"
	if c, err = b.Config(env(nil)); err != nil || c.MaxAllocations != 0 || c.Rules[0].ProgramPath() != "/opt/edge" || c.Rules[0].StatePath() != "/srv/edge" {
		t.Errorf("%+v, %v", c, err)
	}
	file, err := os.ReadFile("runner.nomad.hcl")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/usr/local/bin/bivouac-edge", "/var/lib/bivouac-edge"} {
		if !strings.Contains(string(file), `default     = "`+path+`"`) {
			t.Errorf("runner.nomad.hcl does not begin with %s", path)
		}
	}
}

// What the block does not say is taken from the usual environment, and a token is shown
// to nobody.
func TestBlockEnvironment(t *testing.T) {
	b := jobs.Block{Enrol: []*jobs.EnrolBlock{enrol(nil)}}
	c, err := b.Config(env(map[string]string{"NOMAD_ADDR": "http://127.0.0.1:4646/", "NOMAD_TOKEN": "canary-nomad-token"}))
	if err != nil || c.Address != "http://127.0.0.1:4646" || string(c.Token) != "canary-nomad-token" || len(c.Rules) != 1 {
		t.Errorf("%+v %v", c, err)
	}
	if text := fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(text, "canary") {
		t.Errorf("printed as %s", text)
	}
}

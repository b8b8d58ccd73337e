package jobs

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	"bivouac/jobs/workload"
)

// Block is nomad in server.hcl.
//
//	nomad {
//	  address    = "https://nomad.example.org:4646"   # or NOMAD_ADDR
//	  ca_file    = "/etc/bivouac/nomad-ca.pem"        # or NOMAD_CACERT
//	  token_file = "/etc/bivouac/nomad-token"         # or NOMAD_TOKEN; to read nodes, and
//	                                                  # to make jobs of single attempts
//	  max_allocations = 50                            # such jobs at once; 0: none
//	  enrol "agents" {
//	    namespace = "agents"
//	    job       = "bivouac-runner"
//	    task      = "edge"
//	    audience  = "bivouac.example.org"
//	    tenant    = "ten_…"
//	    principal = "ops"
//	  }
//	}
type Block struct {
	Address   string `hcl:"address,optional"`
	CAFile    string `hcl:"ca_file,optional"`
	CertFile  string `hcl:"cert_file,optional"`
	KeyFile   string `hcl:"key_file,optional"`
	TokenFile string `hcl:"token_file,optional"`
	// MaxAllocations at once of agents that ask for one a turn; absent:
	// DefaultAllocations, 0: none.
	MaxAllocations *int          `hcl:"max_allocations,optional"`
	Enrol          []*EnrolBlock `hcl:"enrol,block"`
}

// EnrolBlock binds the identities of one task to whom its machines belong to.
type EnrolBlock struct {
	Name      string   `hcl:"name,label"`
	Namespace string   `hcl:"namespace"`
	Job       string   `hcl:"job"`
	Task      string   `hcl:"task"`
	Audience  string   `hcl:"audience"`
	Issuer    string   `hcl:"issuer,optional"`
	NodePool  string   `hcl:"node_pool,optional"`
	Tenant    string   `hcl:"tenant"`
	Principal string   `hcl:"principal"`
	Actions   []string `hcl:"actions,optional"`
	// Program and State are bivouac-edge and its folder on the nodes, as the variables of
	// jobs/runner.nomad.hcl say them.
	Program string `hcl:"program,optional"`
	State   string `hcl:"state,optional"`
}

// DefaultAllocations and MostAllocations are how many jobs of attempts there may be.
const (
	DefaultAllocations = 50
	MostAllocations    = 1000
)

// Config is the block with what the environment adds.
type Config struct {
	Address           string // URL without a path
	CAFile            string // empty: the system's
	CertFile, KeyFile string // for a Nomad that asks for client certificates
	// TokenFile, or a Token of the environment, to read nodes and make jobs of attempts;
	// neither: neither is done.
	TokenFile string
	Token     Secret
	Rules     []workload.Rule
	// MaxAllocations that this server asks for at once.
	MaxAllocations int
	// Transport replaces the one to the address, for tests.
	Transport http.RoundTripper

	admin bool // of a person, see Admin
}

// Secret prints as nothing.
type Secret string

// String hides it.
func (Secret) String() string { return "REDACTED" }

// GoString hides it.
func (Secret) GoString() string { return "REDACTED" }

// Config checks the block and returns every problem at once. env reads the environment.
func (b Block) Config(env func(string) string) (Config, error) {
	c := Config{
		Address: strings.TrimRight(cmp.Or(b.Address, env("NOMAD_ADDR")), "/"), CAFile: cmp.Or(b.CAFile, env("NOMAD_CACERT")),
		CertFile: cmp.Or(b.CertFile, env("NOMAD_CLIENT_CERT")), KeyFile: cmp.Or(b.KeyFile, env("NOMAD_CLIENT_KEY")), TokenFile: b.TokenFile,
	}
	if c.TokenFile == "" {
		c.Token = Secret(env("NOMAD_TOKEN"))
	}
	var bad problems
	bad.add("nomad.address", checkAddress(c.Address))
	if _, err := c.tls(); err != nil {
		bad.add("nomad", err)
	}
	if c.TokenFile != "" {
		_, err := c.token()
		bad.add("nomad.token_file", err)
	}
	if len(b.Enrol) == 0 && c.TokenFile == "" && c.Token == "" {
		bad.add("nomad", errors.New("it says neither whose machines enrol nor with which token nodes are read: add an enrol block, see jobs/README.md"))
	}
	c.MaxAllocations = DefaultAllocations
	if n := b.MaxAllocations; n != nil {
		if c.MaxAllocations = *n; *n < 0 || *n > MostAllocations {
			bad.add("nomad.max_allocations", fmt.Errorf("%d: it is a number from 0 to %d", *n, MostAllocations))
		}
	}
	for i, e := range b.Enrol {
		bad.add(fmt.Sprintf("nomad.enrol %q", e.Name), e.check(b.Enrol[:i]))
		c.Rules = append(c.Rules, e.rule())
	}
	return c, bad.error()
}

// problems are those of a block, each with its place.
type problems []error

func (p *problems) add(field string, err error) {
	if err != nil {
		*p = append(*p, fmt.Errorf("%s: %w", field, err))
	}
}

func (p problems) error() error {
	if len(p) == 0 {
		return nil
	}
	all := errors.Join(p...)
	return &protocol.Error{Code: protocol.CodeInvalidArgument, Err: all,
		Message: "the nomad block of the configuration file is not usable:\n  " + strings.ReplaceAll(all.Error(), "\n", "\n  ")}
}

// checkAddress takes HTTPS, and HTTP on the loopback: who could change the keys on their
// way could make any machine a runner.
func checkAddress(address string) error {
	if address == "" {
		return errors.New("it is missing: name Nomad's API there or in NOMAD_ADDR, https://HOST:4646")
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
		return fmt.Errorf("%q is no address: write it as https://HOST:4646", address)
	}
	ip := net.ParseIP(u.Hostname())
	if u.Scheme == "https" || u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()) {
		return nil
	}
	return fmt.Errorf("%s is neither HTTPS nor on the loopback, and whoever changes Nomad's keys on their way makes any machine a runner: set tls { http = true } in Nomad, and write https://", address)
}

func (e *EnrolBlock) rule() workload.Rule {
	return workload.Rule{Name: e.Name, Audience: e.Audience, Issuer: e.Issuer, Namespace: e.Namespace, Job: e.Job, Task: e.Task, Pool: e.NodePool,
		Tenant: protocol.TenantID(e.Tenant), Principal: e.Principal, Actions: e.Actions, Program: e.Program, State: e.State}
}

// check one block beside those before it.
func (e *EnrolBlock) check(before []*EnrolBlock) error {
	var bad []error
	for _, f := range []struct{ name, value string }{
		{"namespace", e.Namespace}, {"job", e.Job}, {"task", e.Task}, {"audience", e.Audience}, {"principal", e.Principal},
	} {
		switch {
		case f.value == "":
			bad = append(bad, fmt.Errorf("%s is empty", f.name))
		case f.name != "audience" && strings.ContainsAny(f.value, "/*"):
			bad = append(bad, fmt.Errorf("%s %q: it is one name, without / and *", f.name, f.value))
		}
	}
	if _, err := protocol.ParseID[protocol.TenantKind](e.Tenant); err != nil {
		bad = append(bad, fmt.Errorf("tenant: %w; `bivouac whoami` says yours", err))
	}
	for _, f := range []struct{ name, value string }{{"program", e.Program}, {"state", e.State}} {
		if f.value != "" && (!filepath.IsAbs(f.value) || strings.ContainsAny(f.value, "$\n\x00")) {
			bad = append(bad, fmt.Errorf("%s %q: it is a path on the nodes that begins with /, and has no variable in it", f.name, f.value))
		}
	}
	for _, o := range before {
		if o.Name == e.Name {
			bad = append(bad, errors.New("there is a block of that name before it"))
		}
		if o.Namespace == e.Namespace && o.Job == e.Job && o.Task == e.Task {
			bad = append(bad, fmt.Errorf("it is about the same task as enrol %q: a machine belongs to one principal", o.Name))
		}
	}
	return errors.Join(bad...)
}

// token to read nodes with; empty: there is none.
func (c Config) token() (string, error) {
	if c.TokenFile == "" {
		return string(c.Token), nil
	}
	if err := filemode.Secret(c.TokenFile); err != nil {
		return "", err
	}
	b, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsAny(token, " \n\t") {
		return "", fmt.Errorf("%s does not hold one token and nothing else", c.TokenFile)
	}
	return token, nil
}

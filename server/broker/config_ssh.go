package broker

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"time"

	"github.com/hashicorp/hcl/v2"

	"bivouac/server/broker/egress"
	"bivouac/server/broker/gateway"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/ssh"
)

// SSH makes a destination a host on which declared commands run, for tools of kind
// "ssh" alone. Its url is ssh://host or ssh://host:port. A credential of it has a block
// from "ssh": each action signs in with a certificate of its own, which is bound to its
// very command.
type SSH struct {
	// User of the host in whose name commands run.
	User string `hcl:"user"`
	// HostKeys by which the host is known, as authorized_keys has keys ("ssh-ed25519
	// AAAA…"), and HostCA keys that certify its key for the host of the url. One of both
	// is needed: no host is believed for what it shows first.
	HostKeys []string `hcl:"host_keys,optional"`
	HostCA   []string `hcl:"host_ca,optional"`
	// Commands that tools may name. Each is a path of its own for intentions: POST of
	// "/<name>", and GET for its look-up.
	Commands []SSHCommand `hcl:"command,block"`
}

// SSHCommand is one command on a host.
type SSHCommand struct {
	Name string `hcl:"name,label"`
	// Run is the program and its arguments, a word each. {name} is an argument of the
	// tool, and {idempotency_key} the key of the call. Every word is quoted.
	Run []string `hcl:"run"`
	// Inspect looks whether a call happened, by {idempotency_key}, which stands in run too:
	// exit status 0 says that it did, 10 that it did not and cannot begin any more, and any
	// other says nothing. A tool whose recovery is "inspectable" needs it.
	Inspect []string `hcl:"inspect,optional"`
	// Idempotent says that a second run of it does nothing more than the first, as of a
	// command that only reads. A tool whose recovery is "idempotent" is run again when its
	// answer was lost: it needs this, or {idempotency_key} in run. Default false.
	Idempotent bool `hcl:"idempotent,optional"`
	// Timeout of one call; a tool's own may be shorter. Default "1m".
	Timeout string `hcl:"timeout,optional"`
	// Arguments that are more, or less, than is admitted by itself: alone in a word any
	// text that does not begin with a hyphen; within a word a name. What a shell, an
	// interpreter or a program that starts others may read as code is filled only where a
	// pattern admits plain names alone.
	Arguments []SSHArgument `hcl:"argument,block"`
	Range     hcl.Range     `hcl:",def_range"`
}

// SSHArgument says what one argument may be.
type SSHArgument struct {
	Name string `hcl:"name,label"`
	// Pattern that it matches as a whole (RE2).
	Pattern string `hcl:"pattern"`
}

var userForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,63}$`)

func (s *SSH) withDefaults() *SSH {
	if s == nil {
		return nil
	}
	out := *s
	out.Commands = slices.Clone(s.Commands)
	for i := range out.Commands {
		if out.Commands[i].Timeout == "" {
			out.Commands[i].Timeout = ssh.DefaultTimeout.String()
		}
	}
	return &out
}

// command in the words of package ssh, and what is wrong with it.
func (c SSHCommand) command() (out ssh.Command, problems []error) {
	out = ssh.Command{Run: c.Run, Inspect: c.Inspect, Idempotent: c.Idempotent, Patterns: map[string]string{}}
	for _, a := range c.Arguments {
		if _, twice := out.Patterns[a.Name]; twice {
			problems = append(problems, fmt.Errorf("argument %q stands twice", a.Name))
		}
		out.Patterns[a.Name] = a.Pattern
	}
	var err error
	if out.Timeout, err = time.ParseDuration(c.Timeout); err != nil || out.Timeout < time.Second || out.Timeout > gateway.MaxTimeout {
		problems = append(problems, fmt.Errorf("timeout %q: a duration from \"1s\" to %q", c.Timeout, gateway.MaxTimeout))
	}
	return out, append(problems, out.Check()...)
}

// ssh is a destination that is a host.
func (k *check) ssh(d Destination) {
	s := d.SSH
	_, err := ssh.CheckURL(d.URL)
	k.err(d.Range, "url", err)
	if d.MCP != nil || d.Egress != nil || d.Pages != nil || d.Retries != nil || len(d.Methods) > 0 || d.CAFile != "" {
		k.bad(d.Range, "ssh: a host takes tools of kind \"ssh\" alone: no mcp, egress or pages block, and no methods, retries or ca_file beside it")
	}
	if !userForm.MatchString(s.User) {
		k.bad(d.Range, "ssh: user %q is no name of a user", s.User)
	}
	if len(s.HostKeys)+len(s.HostCA) == 0 {
		k.bad(d.Range, "ssh: host_keys or host_ca is missing: no host is believed for what it shows first; read its keys on the host itself (cat /etc/ssh/ssh_host_*_key.pub)")
	}
	for field, keys := range map[string][]string{"host_keys": s.HostKeys, "host_ca": s.HostCA} {
		if _, err := issued.PublicKeys(keys); err != nil {
			k.bad(d.Range, "ssh: %s: %w", field, err)
		}
	}
	if len(d.Credentials) == 0 {
		k.bad(d.Range, "ssh: a credential with a block from \"ssh\" is missing: it signs in for each action")
	}
	if len(s.Commands) == 0 {
		k.bad(d.Range, "ssh: a command block is missing: nothing could be run there")
	}
	seen := map[string]bool{}
	for _, c := range s.Commands {
		if !routeName.MatchString(c.Name) || seen[c.Name] {
			k.bad(c.Range, "ssh: command %q: names stand once, and have lower-case letters, digits and hyphens, at most 48", c.Name)
		}
		seen[c.Name] = true
		_, problems := c.command()
		for _, p := range problems {
			k.bad(c.Range, "ssh: command %q: %w", c.Name, p)
		}
	}
}

// ofSSH refuses a credential that does not fit its destination.
func (k *check) ofSSH(d Destination, cr Credential) {
	is := cr.From != nil && cr.From.Engine == issued.SSH
	switch {
	case d.SSH != nil && !is:
		k.bad(cr.Range, "credential %q: a host is signed in to with a certificate that is issued for each action, and gets nothing that is stored: give it a block from \"ssh\"", cr.Name)
	case d.SSH == nil && is:
		k.bad(cr.Range, "credential %q: from \"ssh\" signs in to a host: it needs a destination with an ssh block", cr.Name)
	}
}

// wayOfSSH asks a host for its key, and signs in nowhere.
func (c Config) wayOfSSH(d Destination, n egress.Network) way {
	w := way{check: "tool." + d.Name, url: d.URL}
	out, err := c.openSSH(d, Ports{Egress: n})
	if err != nil {
		w.err = err
		return w
	}
	host, port, _ := net.SplitHostPort(egress.HostPort(out.reach.Base)) // it has both
	w.reach, w.mend = out.ssh.Reach, "ssh-keyscan -p "+port+" "+host
	return w
}

// openSSH is a destination that is a host.
func (c Config) openSSH(d Destination, p Ports) (*outlet, error) {
	base, err := ssh.CheckURL(d.URL)
	if err != nil {
		return nil, err
	}
	out := c.openOther(d, base)
	out.reach = egress.Config{Name: "destination " + d.Name, Base: base, AllowPrivate: d.AllowPrivate, Network: p.Egress}
	cfg := ssh.Config{Name: d.Name, User: d.SSH.User, Commands: map[string]ssh.Command{}, Credentials: out.Credentials(), Reach: out.reach}
	if cfg.HostKeys, err = issued.PublicKeys(d.SSH.HostKeys); err != nil {
		return nil, err
	}
	if cfg.HostCAs, err = issued.PublicKeys(d.SSH.HostCA); err != nil {
		return nil, err
	}
	for _, command := range d.SSH.Commands {
		cfg.Commands[command.Name], _ = command.command() // it was checked
	}
	out.ssh = ssh.New(cfg)
	return out, nil
}

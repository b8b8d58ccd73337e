package settings

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"

	"bivouac/consul/client"
	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
)

// Of is the process whose file has the block.
type Of string

// The processes.
const (
	Broker Of = "broker"
	Server Of = "server"
)

// DefaultFresh is how old an answer may be where a block does not say it.
const DefaultFresh = 5 * time.Second

// Config is the consul block of broker.hcl or of server.hcl.
type Config struct {
	// Address such as https://consul.example:8501, or 127.0.0.1:8500 for the agent of
	// this machine. Default: CONSUL_HTTP_ADDR.
	Address string `hcl:"address,optional"`
	// CAFile holds certificates (PEM) to trust instead of the machine's. Default:
	// CONSUL_CACERT.
	CAFile string `hcl:"ca_file,optional"`
	// ServerName in Consul's certificate, such as server.dc1.consul. Default:
	// CONSUL_TLS_SERVER_NAME, else the host of the address.
	ServerName string `hcl:"server_name,optional"`
	// CertFile and KeyFile, where Consul wants a client certificate. Default:
	// CONSUL_CLIENT_CERT and CONSUL_CLIENT_KEY.
	CertFile string `hcl:"cert_file,optional"`
	KeyFile  string `hcl:"key_file,optional"`
	// TokenFile holds the process' own token, and is read for every request. Default:
	// CONSUL_HTTP_TOKEN_FILE; without either, Consul is asked as nobody.
	TokenFile string `hcl:"token_file,optional"`
	// FreshText is how old an answer may be under which something new begins. Default
	// "5s". The broker's alone.
	FreshText string `hcl:"fresh,optional"`
	// Service makes the process a service in Consul.
	Service *Service `hcl:"service,block"`
	// Mesh gives it an identity of Consul's mesh beside its own.
	Mesh *Mesh `hcl:"mesh,block"`

	of     Of
	dir    string
	secure bool // CONSUL_HTTP_SSL

	file    string  // whose block it is
	fromEnv bool    // the environment names TokenFile
	flags   *string // with which a command about it was called; nil: by none
	role    string  // of the process' token, where a command named it
}

// Decode reads the body of a consul block. dir is where relative file names start;
// getenv is the environment. Every problem is in the error.
func Decode(of Of, body hcl.Body, dir string, getenv func(string) string) (Config, error) {
	return decode(of, body, dir, getenv, false)
}

// DecodeElsewhere reads a block whose files are on the machine of the process, which need
// not be this one.
func DecodeElsewhere(of Of, body hcl.Body, dir string, getenv func(string) string) (Config, error) {
	return decode(of, body, dir, getenv, true)
}

func decode(of Of, body hcl.Body, dir string, getenv func(string) string, elsewhere bool) (Config, error) {
	var c Config
	k := &check{of: of, elsewhere: elsewhere}
	for _, d := range gohcl.DecodeBody(body, nil, &c) {
		if d.Severity == hcl.DiagError {
			place := "consul"
			if d.Subject != nil {
				place = fmt.Sprintf("%s:%d", d.Subject.Filename, d.Subject.Start.Line)
			}
			k.bad("%s: %s: %s", place, d.Summary, d.Detail)
		}
	}
	if len(k.problems) == 0 {
		c.dir, c.of, c.file = dir, of, body.MissingItemRange().Filename
		c.fromEnv = c.TokenFile == "" && getenv("CONSUL_HTTP_TOKEN_FILE") != ""
		if of == Server && c.FreshText != "" {
			k.bad("fresh is about intentions of destinations, which the broker asks for: leave it out of server.hcl")
		}
		c = c.withDefaults(getenv)
		k.environment(c, getenv)
		k.config(&c)
	}
	if len(k.problems) > 0 {
		return Config{}, protocol.Errorf(protocol.CodeInvalidArgument, "the consul block is refused:\n%w", errors.Join(k.problems...))
	}
	return c, nil
}

// withDefaults fills what a file left out, as Consul's command line does.
func (c Config) withDefaults(getenv func(string) string) Config {
	for field, name := range map[*string]string{
		&c.Address: "CONSUL_HTTP_ADDR", &c.CAFile: "CONSUL_CACERT", &c.ServerName: "CONSUL_TLS_SERVER_NAME", &c.CertFile: "CONSUL_CLIENT_CERT",
		&c.KeyFile: "CONSUL_CLIENT_KEY", &c.TokenFile: "CONSUL_HTTP_TOKEN_FILE",
	} {
		*field = cmp.Or(*field, getenv(name))
	}
	c.secure, _ = strconv.ParseBool(getenv("CONSUL_HTTP_SSL")) // what is no truth value is refused by environment
	c.FreshText = cmp.Or(c.FreshText, DefaultFresh.String())
	c.Service = c.Service.withDefaults(c.of)
	return c
}

// check gathers problems: all of them.
type check struct {
	of        Of
	elsewhere bool
	problems  []error
}

func (k *check) bad(format string, args ...any) {
	k.problems = append(k.problems, fmt.Errorf(format, args...))
}

// environment refuses what Consul's command line would take from it and these processes
// do not: to ignore it would be to ask somebody else, or as somebody else.
func (k *check) environment(c Config, getenv func(string) string) {
	for _, name := range []string{"CONSUL_HTTP_SSL", "CONSUL_HTTP_SSL_VERIFY"} {
		if text := getenv(name); text != "" {
			if is, err := strconv.ParseBool(text); err != nil {
				k.bad("%s is %q: true or false", name, text)
			} else if name == "CONSUL_HTTP_SSL_VERIFY" && !is {
				k.bad("CONSUL_HTTP_SSL_VERIFY turns off the look at Consul's certificate, and anybody could say who may reach what: unset it, and name the authority in ca_file or CONSUL_CACERT")
			}
		}
	}
	if getenv("CONSUL_HTTP_TOKEN") != "" && c.TokenFile == "" {
		k.bad("CONSUL_HTTP_TOKEN holds a token, and the %s takes none from its environment, where it could not be replaced: put it into a file (mode 0600), and name that in token_file or CONSUL_HTTP_TOKEN_FILE", k.of)
	}
	for name, instead := range map[string]string{
		"CONSUL_HTTP_AUTH": "a token, in token_file", "CONSUL_CAPATH": "one file, in ca_file or CONSUL_CACERT",
	} {
		if getenv(name) != "" {
			k.bad("%s is set, and means nothing to the %s: unset it, and use %s", name, k.of, instead)
		}
	}
	for _, name := range []string{"CONSUL_NAMESPACE", "CONSUL_PARTITION"} {
		if text := getenv(name); text != "" && text != "default" {
			k.bad("%s is %q: the %s asks in the default one alone; unset it", name, text, k.of)
		}
	}
}

const (
	leastFresh = 2 * time.Second
	mostFresh  = time.Minute
)

func (k *check) config(c *Config) {
	if c.Address == "" {
		k.bad("address is missing, and CONSUL_HTTP_ADDR does not say it")
	} else if url, err := client.CheckAddress(c.Address, c.secure); err != nil {
		k.bad("%w", err)
	} else {
		c.Address = url
	}
	k.file("ca_file", c.path(c.CAFile), filemode.Policy)
	k.file("cert_file", c.path(c.CertFile), filemode.Policy)
	k.file("key_file", c.path(c.KeyFile), filemode.Secret)
	if (c.CertFile == "") != (c.KeyFile == "") {
		k.bad("cert_file and key_file belong together: one of them is missing")
	}
	if c.TokenFile != "" { // it may come later, and is looked at for every request
		if err := filemode.Secret(c.path(c.TokenFile)); err != nil {
			k.bad("token_file: %w", err)
		}
	}
	if d, err := time.ParseDuration(c.FreshText); err != nil || d < leastFresh || d > mostFresh {
		k.bad("fresh %q: a duration from %q to %q", c.FreshText, leastFresh, mostFresh)
	}
	k.service(c)
	k.mesh(c)
}

func (k *check) file(field, path string, mode func(...string) error) {
	if path == "" {
		return
	}
	if _, err := os.Stat(path); k.elsewhere && errors.Is(err, os.ErrNotExist) {
		return
	} else if err != nil {
		k.bad("%s: %w", field, err)
	} else if err := mode(path); err != nil {
		k.bad("%s: %w", field, err)
	}
}

func (c Config) path(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(c.dir, name)
}

// Fresh is how old an answer may be under which something new begins.
func (c Config) Fresh() time.Duration {
	d, _ := time.ParseDuration(c.FreshText) // checked by config
	return d
}

// Way to Consul, without a token.
func (c Config) Way() client.Config {
	return client.Config{Address: c.Address, CAFile: c.path(c.CAFile), ServerName: c.ServerName, CertFile: c.path(c.CertFile), KeyFile: c.path(c.KeyFile)}
}

// TokenPath is where the process' token is; empty: Consul is asked as nobody.
func (c Config) TokenPath() string { return c.path(c.TokenFile) }

// Client that the configuration describes. Its token is read for every request.
func (c Config) Client() (*client.Client, error) {
	way := c.Way()
	if c.TokenFile != "" {
		way.Token = client.TokenFile(c.TokenPath())
	}
	return client.New(way)
}

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/consul/client"
	"bivouac/consul/intentions"
	"bivouac/consul/plan"
	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
	hidden "bivouac/server/broker/secret"
)

func (a *app) consulCommand() *cobra.Command {
	return group(&cobra.Command{Use: "consul", Short: "Set up and check a Consul whose intentions say who may reach what"},
		a.consulSetup(), a.consulCheck())
}

// consulFlags say for which broker.
type consulFlags struct{ file, name string }

func (f *consulFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "broker-config", "", "broker.hcl, whose consul block, models and destinations say what is made (default: that of this machine's broker)")
	cmd.Flags().StringVar(&f.name, "name", plan.DefaultName, "name of the broker's policy and role; a second broker in the same Consul needs another")
}

const asConsulAdmin = `

You are whoever your environment says, as with the consul command line: CONSUL_HTTP_ADDR,
CONSUL_CACERT, CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY and CONSUL_TLS_SERVER_NAME where
broker.hcl names another way or none, and the token of CONSUL_HTTP_TOKEN_FILE or
CONSUL_HTTP_TOKEN. No token is taken from an argument, and never the broker's.`

func (f consulFlags) path() string { return brokerFile(f.file) }

// words are the flags as they were given, for the commands that are named.
func (f consulFlags) words() (words string) {
	if f.file != "" {
		words = " --broker-config " + shellword.Quote(f.file)
	}
	if f.name != plan.DefaultName {
		words += " --name " + shellword.Quote(f.name)
	}
	return words
}

// consulPlan reads broker.hcl.
func (a *app) consulPlan(f consulFlags) (intentions.File, plan.Plan, error) {
	file, err := intentions.ReadFile(f.path(), ofTheBroker)
	switch {
	case errors.Is(err, intentions.ErrNoConsul):
		return file, plan.Plan{}, protocol.Errorf(protocol.CodeFailedPrecondition, "%w: who may reach what is in the files of its paths directory; what to add to move it is in consul/README.md", err)
	case err != nil && f.file == "":
		return file, plan.Plan{}, protocol.Errorf(protocol.CodeOf(err), "%w; where the broker's file is elsewhere, name it: --broker-config FILE", err)
	case err != nil:
		return file, plan.Plan{}, err
	}
	if !validName(f.name) {
		return file, plan.Plan{}, protocol.Errorf(protocol.CodeInvalidArgument, "--name %q: letters, digits and hyphens", f.name)
	}
	file.Config = file.Called(f.words(), f.name)
	if s := file.Service; s != nil {
		if s.Peer == f.name {
			return file, plan.Plan{}, protocol.Errorf(protocol.CodeInvalidArgument, "--name %q is the name of the server's policy, after its service: give the broker's another", f.name)
		}
		return file, plan.New(f.name, file.Destinations, plan.Services{Broker: s.Name, Server: s.Peer}), nil
	}
	return file, plan.New(f.name, file.Destinations), nil
}

func validName(name string) bool {
	return name != "" && len(name) <= 128 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") == ""
}

// ofTheBroker is the environment as far as it says where Consul is. The tokens in it are
// the admin's, and not the broker's.
func ofTheBroker(name string) string {
	if strings.HasPrefix(name, "CONSUL_HTTP_TOKEN") {
		return ""
	}
	return os.Getenv(name)
}

// consulAdmin asks with the admin's own token, as the consul command line does.
func (a *app) consulAdmin(file intentions.File) (*client.Client, error) {
	address, err := client.CheckAddress(cmp.Or(os.Getenv("CONSUL_HTTP_ADDR"), file.Address), os.Getenv("CONSUL_HTTP_SSL") == "true")
	if err != nil {
		return nil, err
	}
	if address != file.Address {
		fmt.Fprintf(a.err, "note: you ask %s, as your environment says; the broker's Consul is %s\n", plain(address), plain(file.Address))
	}
	way := file.Way()
	way.Address = address
	way.CAFile = cmp.Or(os.Getenv("CONSUL_CACERT"), way.CAFile)
	way.ServerName = cmp.Or(os.Getenv("CONSUL_TLS_SERVER_NAME"), way.ServerName)
	if cert := os.Getenv("CONSUL_CLIENT_CERT"); cert != "" {
		way.CertFile, way.KeyFile = cert, os.Getenv("CONSUL_CLIENT_KEY")
	}
	if way.CAFile, err = a.onThisMachine(way.CAFile); err != nil {
		return nil, err
	}
	if way.Token, err = consulToken(); err != nil {
		return nil, err
	}
	return client.New(way)
}

// onThisMachine leaves out an authority that is on the broker's machine alone.
func (a *app) onThisMachine(ca string) (string, error) {
	if ca == "" {
		return "", nil
	}
	if _, err := os.Stat(ca); os.IsNotExist(err) && os.Getenv("CONSUL_CACERT") == "" {
		fmt.Fprintf(a.err, "note: ca_file of broker.hcl, %s, is not on this machine: the machine's own authorities count; CONSUL_CACERT names another\n", plain(ca))
		return "", nil
	}
	return filepath.Abs(ca)
}

// consulToken of the admin. Without one Consul is asked as nobody, which is enough where
// access control is off.
func consulToken() (func() (hidden.Value, error), error) {
	if path := os.Getenv("CONSUL_HTTP_TOKEN_FILE"); path != "" {
		if err := filemode.Secret(path); err != nil {
			return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "CONSUL_HTTP_TOKEN_FILE: %w", err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "CONSUL_HTTP_TOKEN_FILE: %w", err)
		}
		return oneToken(string(b), path)
	}
	if text := os.Getenv("CONSUL_HTTP_TOKEN"); text != "" {
		return oneToken(text, "CONSUL_HTTP_TOKEN")
	}
	return nil, nil
}

func oneToken(text, from string) (func() (hidden.Value, error), error) {
	v, err := client.Token(text)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeUnauthenticated, "the token in %s is none that can be used: %w", from, err)
	}
	return func() (hidden.Value, error) { return v, nil }, nil
}

// explainConsul says whose token was refused, and what mends a request of the admin's that
// failed.
func explainConsul(ctx context.Context, admin *client.Client, err error) error {
	switch client.KindOf(err) {
	case client.NoToken:
		if consulTokenFrom() == "" {
			return protocol.Errorf(protocol.CodeUnauthenticated, "%w; you ask without a token: set CONSUL_HTTP_TOKEN_FILE (or CONSUL_HTTP_TOKEN) to that of an admin of Consul", err)
		}
		return protocol.Errorf(protocol.CodeUnauthenticated, "%w; Consul knows no token of that in %s (it has expired, was deleted, or is another Consul's): put another there, that of an admin of Consul", err, consulTokenFrom())
	case client.Refused:
		const needs = `it needs acl = "write" and operator = "write" for --apply, acl = "read" to compare, and service_prefix "" { policy = "write"  intentions = "write" }`
		h, asking := admin.Holder(ctx)
		switch {
		case asking != nil:
			return protocol.Errorf(protocol.CodePermissionDenied, "%w; your token: %s", err, needs)
		case h.Nobody():
			return protocol.Errorf(protocol.CodePermissionDenied, "%w; you ask as nobody, without a token: set CONSUL_HTTP_TOKEN_FILE (or CONSUL_HTTP_TOKEN) to that of an admin of Consul; %s", err, needs)
		}
		return protocol.Errorf(protocol.CodePermissionDenied, "%w; it is %s in %s: %s; put another there, that of an admin of Consul", err, h, consulTokenFrom(), needs)
	}
	if mend := client.Mend(err); mend != "" {
		return protocol.Errorf(protocol.CodeOf(err), "%w; %s", err, mend)
	}
	return err
}

// consulTokenFrom is where the admin's token was found; empty: there is none.
func consulTokenFrom() string {
	if path := os.Getenv("CONSUL_HTTP_TOKEN_FILE"); path != "" {
		return path + " (CONSUL_HTTP_TOKEN_FILE)"
	}
	if os.Getenv("CONSUL_HTTP_TOKEN") == "" {
		return ""
	}
	return "CONSUL_HTTP_TOKEN"
}

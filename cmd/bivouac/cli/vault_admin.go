package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	hidden "bivouac/server/broker/secret"
	"bivouac/vaultpolicy"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/plan"
)

// vaultAdmin is the admin at the server, with the admin's own token.
type vaultAdmin struct {
	*client.Client
	way   client.Config
	token hidden.Value
	from  string // where the token was found
}

// vaultAdmin reads the environment as the vault command line does. With an error there
// may be an admin without a token: the server can be asked what everybody may ask.
func (a *app) vaultAdmin(cfg vaultpolicy.Config) (*vaultAdmin, error) {
	way := client.Config{Address: either("ADDR"), CAFile: either("CACERT"), CertFile: either("CLIENT_CERT"), KeyFile: either("CLIENT_KEY"), Namespace: cfg.Namespace}
	if way.Address != "" && strings.TrimRight(way.Address, "/") != strings.TrimRight(cfg.Address, "/") {
		fmt.Fprintf(a.err, "note: you ask %s, as your environment says; the broker's server is %s\n", plain(way.Address), plain(cfg.Address))
	}
	if ns := either("NAMESPACE"); ns != cfg.Namespace && ns != "" {
		fmt.Fprintf(a.err, "note: the namespace is %s, as broker.hcl says, and not %s of your environment\n", plain(cfg.Namespace), plain(ns))
	}
	way.Address = cmp.Or(way.Address, cfg.Address)
	if way.CAFile == "" && cfg.CAFile != "" {
		way.CAFile = cfg.CAFile
		if !filepath.IsAbs(way.CAFile) {
			way.CAFile = filepath.Join(cfg.Dir, way.CAFile)
		}
		if _, err := os.Stat(way.CAFile); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(a.err, "note: ca_file of broker.hcl, %s, is not on this machine: the machine's own authorities count; VAULT_CACERT names another\n", plain(way.CAFile))
			way.CAFile = ""
		}
	}
	if way.CAFile != "" {
		abs, err := filepath.Abs(way.CAFile)
		if err != nil {
			return nil, err
		}
		way.CAFile = abs
	}
	c, err := client.New(way)
	if err != nil {
		return nil, err
	}
	v := &vaultAdmin{Client: c, way: way}
	v.token, v.from, err = adminToken()
	return v, err
}

// either variable of the two command lines.
func either(name string) string { return cmp.Or(os.Getenv("BAO_"+name), os.Getenv("VAULT_"+name)) }

// adminToken from the environment, or from where the vault command line keeps it.
func adminToken() (hidden.Value, string, error) {
	for _, name := range []string{"BAO_TOKEN", "VAULT_TOKEN"} {
		if text := os.Getenv(name); text != "" {
			v, err := usable(text, name)
			return v, name, err
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return hidden.Value{}, "", protocol.Errorf(protocol.CodeUnauthenticated, "there is no token: set VAULT_TOKEN (%w)", err)
	}
	path := filepath.Join(home, ".vault-token")
	if err := filemode.Secret(path); err != nil {
		return hidden.Value{}, "", protocol.Errorf(protocol.CodeFailedPrecondition, "your token is in a file that is not yours alone: %w", err)
	}
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return hidden.Value{}, "", protocol.Errorf(protocol.CodeUnauthenticated, "there is no token, in VAULT_TOKEN (or BAO_TOKEN) nor in %s: vault login puts one there; a token helper of the vault command line is not asked", path)
	case err != nil:
		return hidden.Value{}, "", protocol.Errorf(protocol.CodeFailedPrecondition, "your token cannot be read: %w", err)
	}
	v, err := usable(strings.TrimSpace(string(b)), path)
	return v, path, err
}

func usable(text, from string) (hidden.Value, error) {
	v, err := hidden.New(text)
	if err != nil {
		return v, protocol.Errorf(protocol.CodeUnauthenticated, "the token in %s is none that can be used: %w; a server in dev mode makes a longer one without -dev-root-token-id", from, err)
	}
	return v, nil
}

// ignoresNamespace reports a server that takes no notice of namespaces, so that what is
// made for one lands in the root: Vault without Enterprise does that.
func (v *vaultAdmin) ignoresNamespace(ctx context.Context) bool {
	if v.way.Namespace == "" {
		return false
	}
	none := v.way
	none.Namespace = strings.TrimSuffix(v.way.Namespace, "/") + "/bivouac-no-such-namespace"
	c, err := client.New(none)
	if err != nil {
		return false
	}
	defer c.Close()
	_, err = c.Read(ctx, v.token, "auth/token/lookup-self")
	return err == nil
}

// explain a request that failed: whose token it is that was refused, and what it may
// not do; otherwise what is to be done about the way to the server.
func (v *vaultAdmin) explain(ctx context.Context, p plan.Plan, apply bool, err error) error {
	if client.KindOf(err) != client.Refused {
		if mend := client.Mend(err); mend != "" {
			return protocol.Errorf(protocol.CodeOf(err), "%w; %s", err, mend)
		}
		return err
	}
	self, selfErr := v.Read(ctx, v.token, "auth/token/lookup-self")
	if client.KindOf(selfErr) == client.Refused {
		return v.unknown(ctx, err)
	}
	lacking, askErr := v.Lacking(ctx, v.token, p.Needs(apply))
	if askErr != nil || len(lacking) == 0 {
		return protocol.Errorf(protocol.CodePermissionDenied, "your token (%s, %s) is good and may not do this: %w; ask an admin of the server for the right", v.from, vaultpolicy.Whose(self.Data), err)
	}
	var rules []string
	for _, path := range slices.Sorted(maps.Keys(lacking)) {
		rules = append(rules, fmt.Sprintf("  path %q { capabilities = [\"%s\"] }", path, strings.Join(lacking[path], "\", \"")))
	}
	return protocol.Errorf(protocol.CodePermissionDenied, "your token (%s, %s) may not do this: %w\nwhat it lacks, as rules of a policy:\n%s",
		v.from, vaultpolicy.Whose(self.Data), err, strings.Join(rules, "\n"))
}

// unknown says why a token is none there: another namespace's, or nobody's.
func (v *vaultAdmin) unknown(ctx context.Context, err error) error {
	where := ""
	if v.way.Namespace != "" {
		root := v.way
		root.Namespace = ""
		if c, newErr := client.New(root); newErr == nil {
			_, rootErr := c.Read(ctx, v.token, "auth/token/lookup-self")
			c.Close()
			if rootErr == nil {
				return protocol.Errorf(protocol.CodeUnauthenticated, "your token (%s) is of the root namespace, and the namespace %q is not there or does not take it: %w; vault namespace list shows what is there, and broker.hcl or VAULT_NAMESPACE names it", v.from, v.way.Namespace, err)
			}
		}
		where = fmt.Sprintf(" in the namespace %q", v.way.Namespace)
	}
	return protocol.Errorf(protocol.CodeUnauthenticated, "%s does not know your token (%s)%s: it has ended, was revoked, or is another server's: %w; vault login makes a new one", v.Address(), v.from, where, err)
}

package vaultpolicy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bivouac/edge/filemode"
	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/login"
)

const (
	whyLogin = "the broker makes, watches and ends grants with it"
	whyAway  = "grants and credentials are there: without it no tool gets a credential, and nothing else takes its place"
	// soon is where a token of the broker's that is not renewed is near its end.
	soon = 10 * time.Minute
)

// Examine looks at the server as the broker does, from the machine where it runs. It
// changes nothing there; the token of its own login is ended again.
func (f File) Examine(ctx context.Context, r *finding.Report) {
	before, seen := f.auditSize()
	asked := f.ExamineServer(ctx, r) && f.ExamineLogin(ctx, r)
	f.examineAudit(r, seen && asked, before)
}

// ExamineServer asks what everybody may ask: whether the server is there, and open.
func (f File) ExamineServer(ctx context.Context, r *finding.Report) bool {
	root := f.Config
	root.Namespace = "" // what is asked here is the whole server's
	c, err := root.Client()
	if r.Err("vault.server", err, whyAway, "edit the vault block of broker.hcl") {
		return false
	}
	defer c.Close()
	status, err := c.Read(ctx, secret.Value{}, "sys/seal-status")
	if err != nil {
		r.Bad("vault.server", err.Error(), whyAway, or(client.Mend(err), "vault status"))
		return false
	}
	version := client.Text(status.Data["version"])
	switch {
	case status.Data["initialized"] != nil && !client.Flag(status.Data["initialized"]):
		r.Bad("vault.server", f.Address+" is not initialized", whyAway, "vault operator init  (on the server's machine, once)")
		return false
	case client.Flag(status.Data["sealed"]):
		r.Bad("vault.server", fmt.Sprintf("%s (%s) is sealed: %d of %d unseal keys are given", f.Address, version, client.Number(status.Data["progress"]), client.Number(status.Data["t"])),
			whyAway, "vault operator unseal  (on the server's machine, by whoever holds the unseal keys)")
		return false
	}
	r.Fine("vault.server", "%s, version %s, unsealed", f.Address, version)
	leader, err := c.Read(ctx, secret.Value{}, "sys/leader")
	if err == nil && client.Flag(leader.Data["ha_enabled"]) && !client.Flag(leader.Data["is_self"]) {
		r.Warn("vault.standby", f.Address+" is a standby of "+or(client.Text(leader.Data["leader_address"]), "a server that it does not name"),
			"a standby may accept a grant that was just revoked, until it has heard of it", "name the active server in address, or a load balancer that asks sys/health; with OpenBao disable_standby_reads = true does it too")
	}
	return true
}

// ExamineLogin logs in as the broker does, and asks what that login may. It reports
// whether it could.
func (f File) ExamineLogin(ctx context.Context, r *finding.Report) bool {
	auth, err := f.auth()
	if err == nil && f.examineWrapped(ctx, r, auth) {
		return false // it is not this look that opens it
	}
	auth.Wrapped = ""
	if err == nil {
		err = f.legible(auth.File)
	}
	if r.Err("vault.login", err, whyLogin, or(f.Fetch(), "edit the auth block of broker.hcl")) {
		return false
	}
	c, err := f.Client()
	if r.Err("vault.login", err, whyLogin, "edit the vault block of broker.hcl") {
		return false
	}
	defer c.Close()
	s := login.New(c, auth, slog.New(slog.DiscardHandler))
	if !f.examineSession(ctx, r, s, c) {
		return false
	}
	f.examineOpened(ctx, r, s, c)
	if auth.Method != login.Token {
		f.logout(ctx, s, c)
	}
	return true
}

// Examine is what a running broker says of the server, by the login that it has.
func (v *Vault) Examine(ctx context.Context, r *finding.Report) {
	f := File{Config: v.cfg}
	before, seen := f.auditSize()
	asked := f.ExamineServer(ctx, r) && f.examineSession(ctx, r, v.session, v.client)
	f.examineAudit(r, seen && asked, before)
}

// examineSession asks what the broker's login is, and what it may. It reports whether
// there is one.
func (f File) examineSession(ctx context.Context, r *finding.Report, s *login.Session, c *client.Client) bool {
	own, err := self(ctx, s, c)
	var other *login.Other
	switch {
	case errors.As(err, &other):
		r.Bad("vault.cluster", other.Error(), "no grant is used until then, none ends by it, and nothing is written there", login.MendOther)
		return false
	case err != nil:
		r.Bad("vault.login", f.sayLoginFailed(err), whyLogin, f.mendLogin(err))
		return false
	}
	if bad := s.Alarm(); bad != nil {
		sayIntercepted(r, bad)
	}
	f.sayLogin(r, own)
	missing, err := f.missing(ctx, s, c)
	if err != nil {
		r.Bad("vault.rights", f.whose(own)+" may not ask what it may: "+err.Error(), whyLogin, f.mendRights(own))
		return true
	}
	for _, m := range missing {
		r.Bad("vault.rights", f.whose(own)+" lacks the right to "+m.String(), m.without, f.mendRights(own))
	}
	if len(missing) == 0 {
		r.Fine("vault.rights", "all %d that the broker needs, asked one by one", len(f.rights(f.Scope)))
	}
	return true
}

// self is what the server says of the broker's token.
func self(ctx context.Context, s *login.Session, c *client.Client) (a client.Answer, err error) {
	if err := s.Prove(ctx); err != nil {
		return a, err
	}
	err = s.Do(ctx, func(ctx context.Context, token secret.Value) error {
		a, err = c.Read(ctx, token, "auth/token/lookup-self")
		return err
	})
	return a, err
}

func (f File) sayLogin(r *finding.Report, own client.Answer) {
	ttl, renewable := client.Seconds(own.Data["ttl"]), client.Flag(own.Data["renewable"])
	said := fmt.Sprintf("%s works: policies %s, %s left, accessor %s", f.Auth.Method, strings.Join(client.Texts(own.Data["policies"]), ", "), ttl, client.Text(own.Data["accessor"]))
	switch {
	case ttl == 0:
		r.Warn("vault.login", f.Auth.Method+" works, with a token that never ends", "whoever gets hold of it keeps it", "let the server make one that ends: "+f.mendLogin(nil))
	case !renewable && f.Auth.Method == login.Token:
		r.Warn("vault.login", said+", and it cannot be renewed", "the broker has no login from then on, until somebody puts a new token into its file", "vault token create -role="+f.names().BrokerPolicy()+"  (its tokens are renewable)")
	case ttl < soon && f.Auth.Method == login.Token:
		r.Warn("vault.login", said, "the broker renews it while it runs, and here none did", "start the broker, or put a new token into "+f.path(f.Auth.File))
	default:
		r.Fine("vault.login", "%s", said)
	}
}

// mendLogin says what to do about a login that fails.
func (f File) mendLogin(err error) string {
	if mend := client.Mend(err); mend != "" {
		return mend
	}
	unlock := ""
	if a, e := f.auth(); e == nil && a.Unlock() != "" {
		unlock = "\n# and where the right secret id is refused too, the server has locked it out, for 15 minutes or as it is tuned:\n" + a.Unlock()
	}
	role := "auth/" + f.Auth.Mount + "/role/" + f.Auth.Role
	if f.Auth.Method == login.Token {
		role = "auth/token/roles/" + f.names().BrokerPolicy()
	}
	var denied *login.Denied
	switch fetch := f.Fetch(); {
	case fetch != "" && errors.As(err, &denied):
		return "new files for the broker, as an admin of the server  (if `vault read " + role + "` finds none, before it: " + f.Setup() + "):\n" + fetch + unlock
	case fetch != "":
		return f.Setup() + "  (makes the role), then new files for the broker:\n" + fetch + unlock
	}
	return f.Setup() + "  (makes the role), then see that the broker's " + f.Auth.Method + " is the one that the role is bound to"
}

// missing rights of the broker's login.
func (f File) missing(ctx context.Context, s *login.Session, c *client.Client) (missing []right, err error) {
	err = s.Do(ctx, func(ctx context.Context, token secret.Value) error {
		missing, err = lacks(ctx, c, token, f.rights(f.Scope))
		return err
	})
	return missing, err
}

// examineOpened looks whether what tools may use can be granted, as the broker looks.
func (f File) examineOpened(ctx context.Context, r *finding.Report, s *login.Session, c *client.Client) {
	wanted, opened := 0, 0
	for _, t := range f.Tenants {
		for _, o := range f.Scope.opened(protocol.TenantID(t)) {
			wanted++
			policy := f.names().UsePolicy(o.Credential)
			err := s.Do(ctx, func(ctx context.Context, token secret.Value) error {
				_, err := c.Read(ctx, token, "sys/policies/acl/"+policy)
				return err
			})
			switch client.KindOf(err) {
			case "":
				opened++
			case client.Absent:
				r.Bad("vault.opened", "the policy "+policy+" is missing", "no grant of tenant "+t+" can use the credential "+o.Name, f.Setup())
			}
		}
	}
	switch {
	case len(f.Tenants) == 0:
		r.Warn("vault.opened", "the vault block names no tenant", "a key of a route, or a credential of a grant, is only opened for a tenant that is named", "tenants = [\"ten_…\"] in the vault block (bivouac whoami says yours), then "+f.Setup())
	case opened == wanted:
		r.Fine("vault.opened", "%d credential(s) of tools for %d tenant(s), %d key(s) of routes", len(f.Scope.Credentials), len(f.Tenants), len(f.keys(f.Scope)))
	}
}

// logout ends the token of an examination. What fails ends with its time.
func (f File) logout(ctx context.Context, s *login.Session, c *client.Client) {
	_ = s.Do(ctx, func(ctx context.Context, token secret.Value) error {
		_, err := c.Write(ctx, token, "auth/token/revoke-self", map[string]any{})
		return err
	})
}

// legible reports a secret file that is not here, open to others or not readable.
func (f File) legible(path string) error {
	if path == "" {
		return nil
	}
	if err := filemode.Secret(path); err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the login was not tried: %w", err)
	}
	return file.Close()
}

// auditSize of the file that wakes the broker.
func (f File) auditSize() (int64, bool) {
	if f.Audit == nil || f.Audit.File == "" {
		return 0, false
	}
	info, err := os.Stat(f.path(f.Audit.File))
	if err != nil {
		return 0, false
	}
	return info.Size(), true
}

const whyAudit = "what an admin revokes is then seen within poll instead of at once, and within half a minute where nobody uses the grant"

// examineAudit looks at what wakes the broker. Our own requests stand in it, where
// the server that was asked is the one that writes it.
func (f File) examineAudit(r *finding.Report, seen bool, before int64) {
	switch {
	case f.Audit == nil:
		r.Warn("vault.audit", "the vault block has no audit source", whyAudit, "audit { file = \"…\" } or audit { socket = \"…\" } in the vault block: vaultpolicy/README.md says how")
		return
	case f.Audit.Socket != "":
		f.examineSocket(r, f.path(f.Audit.Socket))
		return
	}
	path := f.path(f.Audit.File)
	file, err := os.Open(path)
	if err != nil {
		r.Bad("vault.audit", err.Error(), whyAudit, "vault audit enable file file_path="+path+" mode=0640, and let the broker's user read it (its group, and x on the folders above)")
		return
	}
	defer file.Close() // it was only opened
	if after, ok := f.auditSize(); seen && ok && after == before {
		r.Warn("vault.audit", path+" did not grow while the server was asked", whyAudit, "vault audit list -detailed  (does this server write there, and is it the active one?)")
		return
	}
	r.Fine("vault.audit", "%s is read, and the server writes to it", path)
}

func (f File) examineSocket(r *finding.Report, path string) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Dir(path)); r.Err("vault.audit", err, whyAudit, "mkdir -p "+filepath.Dir(path)) {
			return
		}
		r.Warn("vault.audit", path+" is not there: no broker listens", "a socket device with nobody behind it makes the server refuse requests, unless another device works", "start bivouac-broker before: vault audit enable -path=bivouac socket address="+path+" socket_type=unix; and keep a file device")
	case r.Err("vault.audit", err, whyAudit, "run this as the user of the broker"):
	case info.Mode().Type() != fs.ModeSocket:
		r.Bad("vault.audit", path+" is no socket", whyAudit, "name another path in audit, or remove the file")
	default:
		r.Fine("vault.audit", "%s is there, and the broker listens; whether a device of the server writes to it, bivouac vault check says", path)
	}
}

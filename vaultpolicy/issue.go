package vaultpolicy

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/policies"
)

// Issue has an engine make the credential of one action, with the batch token of that
// action: what the engine issues hangs on it, so that it ends with the token after a
// minute, and with the grant at once. Nothing is kept. INV-13.
func (v *Vault) Issue(ctx context.Context, u authority.Use, from *issued.From) (issued.Credential, error) {
	if err := v.cfg.own(from); err != nil {
		return issued.Credential{}, err
	}
	if !from.For(u.Tenant) {
		return issued.Credential{}, notFor(u.Tenant, u.Credential)
	}
	c := policies.Credential{Tenant: u.Tenant, Name: u.Credential}
	action, err := v.actionOf(ctx, u, c)
	if err != nil {
		return issued.Credential{}, err
	}
	i := issue{v, u, c, from, action}
	switch from.Engine {
	case issued.Database:
		return i.database(ctx)
	case issued.PKI:
		return i.certificate(ctx)
	case issued.Transit:
		return i.signer(ctx)
	case issued.SSH:
		return i.signIn(ctx)
	}
	return issued.Credential{}, protocol.Errorf(protocol.CodeInternal, "credential %q: nothing is issued from %q", u.Credential, from.Engine)
}

func notFor(t protocol.TenantID, name string) error {
	return denied("the credential %q is not for tenant %s: its from block in broker.hcl names others", name, t)
}

// own refuses an engine that is Bivouac's: its admin's are elsewhere. What signs
// receipts and seals grants must sign and open nothing else.
func (c Config) own(from *issued.From) error {
	n := c.names()
	for _, mount := range []string{n.Grants, n.Credentials, n.Transit} {
		if from.Mount == mount || strings.HasPrefix(from.Mount, mount+"/") {
			return protocol.Errorf(protocol.CodeInvalidArgument, "from %q: the mount %s holds grants, credentials or receipts of Bivouac itself: name an engine of your own", from.Engine, mount)
		}
	}
	return nil
}

// Opened refuses a credential that no grant of the tenant can use yet.
func (v *Vault) Opened(ctx context.Context, tenant protocol.TenantID, name string, from *issued.From) error {
	if !from.For(tenant) {
		return notFor(tenant, name)
	}
	return v.opened(ctx, policies.Credential{Tenant: tenant, Name: name})
}

// issue is one thing that an engine is asked for.
type issue struct {
	v      *Vault
	use    authority.Use
	c      policies.Credential
	from   *issued.From
	action secret.Value // the batch token
}

// database makes a user. It has a lease, which is ended when the action is over.
func (i issue) database(ctx context.Context) (issued.Credential, error) {
	a, err := i.v.client.Read(ctx, i.action, i.from.Path())
	if err != nil {
		return issued.Credential{}, i.failed(ctx, err)
	}
	c, err := issued.Login(client.Text(a.Data["username"]), client.Text(a.Data["password"]))
	if err == nil && a.Lease == "" {
		err = i.v.client.Strange("read", i.from.Path())
	}
	if err != nil {
		return issued.Credential{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the credential %q cannot be used as its %s issues it: %w", i.c.Name, i.from, err)
	}
	i.v.log.DebugContext(ctx, "a credential was issued", "grant", i.use.Grant, "credential", i.c.Name, "from", i.from.String(), "ttl", a.LeaseTTL)
	c.ReturnFunc = func(ctx context.Context) { i.endLease(ctx, a.Lease) }
	return c, nil
}

// endLease ends what was issued. What it misses ends with the action's token.
func (i issue) endLease(ctx context.Context, lease string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoIn)
	defer cancel()
	_, err := i.v.client.Write(ctx, i.action, "sys/leases/revoke", map[string]any{"lease_id": lease})
	if err != nil && client.KindOf(err) != client.Refused { // refused: the grant ended, and all that hangs on it
		i.v.log.WarnContext(ctx, "what was issued for an action lives until its token ends", "grant", i.use.Grant, "credential", i.c.Name, "within", actionTTL, "error", err)
	}
}

// failed says why an engine issued nothing, and who mends it. What an engine says of
// its own failure stays with the broker's operator: it may name what is behind it.
func (i issue) failed(ctx context.Context, err error) error {
	const which = "the credential %q is not issued: "
	switch k := client.KindOf(err); {
	case k == client.Refused:
		return i.v.refused(ctx, i.use, i.c, err)
	case k == client.Unmounted:
		return protocol.Errorf(protocol.CodeFailedPrecondition, which+"the server has no engine at %s/; its admin enables it: vault secrets enable -path=%s %s", i.c.Name, i.from.Mount, i.from.Mount, i.from.Engine)
	case k == client.Invalid || k == client.Absent:
		i.v.log.WarnContext(ctx, "an engine refuses to issue a credential", "credential", i.c.Name, "from", i.from.String(), "words", engineWords(err))
		return protocol.Errorf(protocol.CodeFailedPrecondition, which+"the %s is missing, or made for something else (the broker's log has the server's words); its admin looks: vault read %s", i.c.Name, i.from, i.from.RolePath())
	case broken(err):
		i.v.log.WarnContext(ctx, "an engine issued no credential", "credential", i.c.Name, "from", i.from.String(), "words", engineWords(err))
		e := protocol.Errorf(protocol.CodeUnavailable, which+"the %s failed inside (the broker's log has its words); what it stands for may be away, or its configuration wrong: vault read %s", i.c.Name, i.from, i.from.RolePath())
		return e
	case err != nil && k == "":
		return err
	}
	return fmt.Errorf(which+"%w", i.c.Name, err)
}

// quotes is where the words of an engine begin to quote: a database's plugin may tell
// the statement that failed, with the password that it was about to set, or the address
// that it connects to.
var quotes = regexp.MustCompile("(?i)['\"`]|://|identified +by|password *[:= ]|pwd")

// engineWords are what an engine said, up to where it quotes.
func engineWords(err error) string {
	f := client.FaultOf(err)
	if f == nil {
		return "none"
	}
	said := f.Said
	if at := quotes.FindStringIndex(said); at != nil {
		said = said[:at[0]] + "… (the rest is withheld, because it may hold a secret: the server's own log has it)"
	}
	return fmt.Sprintf("%s %s: %d: %s", f.Verb, f.Path, f.Status, said)
}

// broken reports that the server answered, and its engine could not.
func broken(err error) bool {
	f := client.FaultOf(err)
	return f != nil && f.Kind == client.Away && f.Status == http.StatusInternalServerError && f.Said != ""
}

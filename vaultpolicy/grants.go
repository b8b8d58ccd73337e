package vaultpolicy

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/policies"
)

// undoIn bounds how long a step that failed is undone, whatever became of the
// request.
const undoIn = 5 * time.Second

// CreateGrant makes the token, seals it and lists it. The same grant again is the
// very same ciphertext, which the index keeps; another one under its id, or one that
// was revoked, is a conflict.
func (v *Vault) CreateGrant(ctx context.Context, g authority.Grant) ([]byte, error) {
	if err := g.Check(); err != nil {
		return nil, err
	}
	g.CreatedAt, g.RevokedAt = now(), time.Time{}
	if e, ok := v.table.get(g.ID); ok && !e.grant.RevokedAt.IsZero() {
		return nil, wasRevoked(g.ID)
	}
	if sealed, found, err := v.again(ctx, g); err != nil || found {
		return sealed, err
	}
	if err := v.policiesExist(ctx, g); err != nil {
		return nil, err
	}
	sent := v.table.now()
	token, accessor, entity, err := v.makeToken(ctx, g)
	if err != nil {
		return nil, err
	}
	sealed, err := v.enlist(ctx, g, token, accessor)
	if err != nil {
		v.undo(ctx, accessor)
		if client.KindOf(err) == client.Changed { // somebody else was making it too
			if sealed, found, err := v.again(ctx, g); err != nil || found {
				return sealed, err
			}
		}
		return nil, err
	}
	v.table.hear(sent)
	v.table.made(entry{grant: g, accessor: accessor, entity: entity})
	return sealed, nil
}

func wasRevoked(id protocol.GrantID) error {
	return protocol.Errorf(protocol.CodeConflict, "grant %s was revoked: make a new one", id)
}

// again finds the grant that is listed already.
func (v *Vault) again(ctx context.Context, g authority.Grant) (sealed []byte, found bool, err error) {
	r, found, err := v.readRecord(ctx, g.Principal, g.ID)
	switch {
	case !found || err != nil:
		return nil, found, err
	case r.spoiled:
		return nil, true, spoiled(g.ID)
	case !r.alive():
		return nil, true, wasRevoked(g.ID)
	case !r.grant.SameAs(g):
		return nil, true, protocol.Errorf(protocol.CodeConflict, "grant %s exists with other content", g.ID)
	}
	v.adopt(ctx, r)
	if e, ok := v.table.get(g.ID); ok && !e.grant.RevokedAt.IsZero() {
		return nil, true, wasRevoked(g.ID)
	}
	v.named.add(named{token: true}, g.ID)
	return r.sealed, true, nil
}

// policiesExist refuses a grant for a credential that the admin has not opened: the
// token would be made all the same, and could reach nothing.
func (v *Vault) policiesExist(ctx context.Context, g authority.Grant) error {
	checks, ctx := errgroup.WithContext(ctx)
	checks.SetLimit(parallel)
	for _, name := range g.Credentials {
		checks.Go(func() error { return v.opened(ctx, policies.Credential{Tenant: g.Tenant, Name: name}) })
	}
	return checks.Wait()
}

func (v *Vault) opened(ctx context.Context, c policies.Credential) error {
	policy := v.names.UsePolicy(c)
	_, err := v.read(ctx, "see which credentials are opened", "sys/policies/acl/"+policy)
	if client.KindOf(err) == client.Absent {
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"the credential %q of tenant %s is not opened to grants: the policy %s is missing; name the tenant in the vault block of broker.hcl, and run: bivouac vault setup --apply", c.Name, c.Tenant, policy)
	}
	return err
}

// makeToken of a grant: an orphan of the role, hanging on the entity of its person.
func (v *Vault) makeToken(ctx context.Context, g authority.Grant) (token secret.Value, accessor, entity string, err error) {
	names := []string{v.names.GrantPolicy()}
	for _, name := range g.Credentials {
		names = append(names, v.names.UsePolicy(policies.Credential{Tenant: g.Tenant, Name: name}))
	}
	a, err := v.write(ctx, "make grants", "auth/token/create/"+v.names.GrantRole(), map[string]any{
		"policies": names, "no_default_policy": true,
		"entity_alias": "user-" + g.Principal.String(), "display_name": "grant-" + g.ID.String(),
		"meta": map[string]string{metaGrant: g.ID.String(), "tenant": g.Tenant.String(), "principal": g.Principal.String(), "agent": g.Agent},
	})
	switch k := client.KindOf(err); {
	case k == client.Disabled:
		return token, "", "", protocol.Errorf(protocol.CodePermissionDenied, "no grant can be made: the entity with the alias user-%s is disabled in the server (%w); its admin enables it again, with disabled=false", g.Principal, err)
	case k == client.Invalid || k == client.Absent:
		return token, "", "", protocol.Errorf(protocol.CodeFailedPrecondition, "no grant can be made: the token role %s is missing or changed: %w; mend it with: bivouac vault setup --apply", v.names.GrantRole(), err)
	case err != nil:
		return token, "", "", err
	case a.Login.Entity == "" || a.Login.Accessor == "":
		v.undo(ctx, a.Login.Accessor)
		return token, "", "", protocol.Errorf(protocol.CodeFailedPrecondition, "no grant can be made: the token role %s does not tie a grant to its person; mend it with: bivouac vault setup --apply", v.names.GrantRole())
	}
	return a.Login.Token, a.Login.Accessor, a.Login.Entity, nil
}

// metaGrant is the token's word about whose it is.
const metaGrant = "grant_id"

// enlist seals the grant and writes its entry, which must be the first one.
func (v *Vault) enlist(ctx context.Context, g authority.Grant, token secret.Value, accessor string) ([]byte, error) {
	sealed, err := v.seal(ctx, opened{grant: g, token: token})
	if err != nil {
		return nil, err
	}
	version, err := v.versionOf(ctx, g.Principal, g.ID)
	if err != nil {
		return nil, err
	}
	if version > 0 { // there was one, and somebody deleted it
		return nil, wasRevoked(g.ID)
	}
	return sealed, v.writeRecord(ctx, record{entry: entry{grant: g, accessor: accessor}, state: stateAlive, sealed: sealed})
}

// undo ends a token that no entry names. What it misses ends with its period.
func (v *Vault) undo(ctx context.Context, accessor string) {
	if accessor == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoIn)
	defer cancel()
	if err := v.revokeToken(ctx, accessor); err != nil {
		v.log.WarnContext(ctx, "the token of a grant that was not made lives until its period ends", "accessor", accessor, "error", err)
	}
}

// endAgain is when a token that somebody else ends is asked for again, and endLast the
// last of those waits, each of which is twice the one before.
const (
	endAgain = 20 * time.Millisecond
	endLast  = 1280 * time.Millisecond
)

// revokeToken ends a token and everything that hangs on it. One that is gone is
// ended. Of two who end one at the same time, the server tells the second that its
// request is wrong, because the token is not found any more: asked again, it says
// whether it knows the accessor, once it has ended what hung on it, such as the users of
// a database. Where an answer is lost, what it said is learned by asking once more.
func (v *Vault) revokeToken(ctx context.Context, accessor string) error {
	end := func() error {
		_, err := v.write(ctx, "revoke grants", "auth/token/revoke-accessor", map[string]any{"accessor": accessor})
		return err
	}
	err := end()
	if client.KindOf(err) == client.Away && op.Sleep(ctx, endAgain) {
		err = end()
	}
	for wait := endAgain; client.KindOf(err) == client.Invalid && wait <= endLast && op.Sleep(ctx, wait); wait *= 2 {
		err = end()
	}
	switch client.KindOf(err) {
	case client.NoAccessor:
		return nil
	case client.Invalid:
		if v.isGone(ctx, accessor) {
			return nil
		}
	}
	return err
}

// isGone reports that a look-up says of a token that there is none, and that the broker
// may look tokens up.
func (v *Vault) isGone(ctx context.Context, accessor string) bool {
	_, err := v.lookup(ctx, accessor)
	k := client.KindOf(err)
	return k == client.NoAccessor || k == client.Refused && badToken(err) && v.mayLookUp(ctx)
}

// Grants of a tenant, oldest first, revoked ones too.
func (v *Vault) Grants(_ context.Context, tenant protocol.TenantID) ([]authority.Grant, error) {
	return v.table.of(tenant)
}

// RevokeGrant refuses the grant here at once, then ends its token and says so in the
// index. INV-13. While the server is away it says so, and goes on trying. It asks the
// server also about a grant that ended long ago: it may have been put back since.
func (v *Vault) RevokeGrant(ctx context.Context, id protocol.GrantID) (authority.Grant, error) {
	e, _ := v.table.end(id, now(), "")
	if e.grant.ID == "" {
		if _, err := v.table.of(""); err != nil {
			return authority.Grant{}, err // the index was not read yet
		}
		return authority.Grant{}, protocol.Errorf(protocol.CodeNotFound, "the broker has no grant %s", id)
	}
	v.table.knows(id)
	v.openGrants.drop(id)
	lost, err := v.lost(ctx, e)
	if err == nil && !lost {
		return e.grant, nil
	}
	if err == nil {
		e, _ = v.table.get(id)
		err = v.finish(ctx, e)
	}
	if err != nil {
		v.clean.Ring()
		return authority.Grant{}, protocol.Errorf(protocol.CodeOf(err), "grant %s is refused here, but its token may live on in the server: %w; the broker goes on trying", id, err)
	}
	return e.grant, nil
}

package vaultpolicy

import (
	"context"
	"encoding/base64"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/vaultpolicy/client"
)

// The states of an entry. Whatever an admin writes there instead of alive ends the
// grant.
const (
	stateAlive   = "alive"
	stateRevoked = "revoked"
)

// record is one entry of the index, as an admin sees it.
type record struct {
	entry
	state  string
	sealed []byte // ciphertext; only transit opens it. What a broker has ended has none.
	renewal
	// spoiled says that somebody has changed the entry so that it is none.
	spoiled bool
	// version of the entry for check-and-set; zero: there is none.
	version int64
}

// over reports that the entry says that its grant ended, and when.
func (r record) over() bool { return r.state == stateRevoked && !r.grant.RevokedAt.IsZero() }

// finished reports that a broker wrote so, after it had ended the token: it takes out
// what was sealed. An end that somebody wrote there says nothing about the token.
func (r record) finished() bool { return r.over() && len(r.sealed) == 0 && !r.spoiled }

// alive reports that the entry says nothing of an end.
func (r record) alive() bool {
	return r.state == stateAlive && r.grant.RevokedAt.IsZero() && !r.spoiled
}

// says reports that the entry is of a grant as it is known, alive.
func (r record) says(e entry) bool {
	return r.alive() && r.grant.SameAs(e.grant) && r.accessor == e.accessor
}

// folder of a person's grants, for people: vault kv list <grants>/<principal>.
func (v *Vault) indexPath(kind string, p protocol.PrincipalID, id protocol.GrantID) string {
	return v.names.Grants + "/" + kind + "/" + p.String() + "/" + id.String()
}

// readRecord reads one entry, which may be spoiled. found is false where none is, or
// where its newest version was deleted.
func (v *Vault) readRecord(ctx context.Context, p protocol.PrincipalID, id protocol.GrantID) (r record, found bool, err error) {
	a, err := v.read(ctx, "read the index of grants", v.indexPath("data", p, id))
	if client.KindOf(err) == client.Absent {
		return record{}, false, nil
	}
	if err != nil {
		return record{}, false, err
	}
	version := client.Number(client.Map(a.Data["metadata"])["version"])
	if version == 0 { // whatever has the store's form has one
		return record{}, false, v.client.Strange("read", v.indexPath("data", p, id))
	}
	r = parseRecord(p, id, client.Map(a.Data["data"]))
	r.version = version
	return r, true, nil
}

func spoiled(id protocol.GrantID) error {
	return protocol.Errorf(protocol.CodeDataLoss, "the entry of grant %s in the index cannot be read as one", id)
}

func parseRecord(p protocol.PrincipalID, id protocol.GrantID, d map[string]any) record {
	tenant, err := protocol.ParseID[protocol.TenantKind](client.Text(d["tenant"]))
	r := record{
		entry: entry{
			grant: authority.Grant{
				ID: id, Tenant: tenant, Principal: p, Agent: client.Text(d["agent"]), Credentials: client.Texts(d["credentials"]),
				CreatedAt: client.Time(d["created"]), RevokedAt: client.Time(d["revoked"]),
			},
			accessor: client.Text(d["accessor"]),
			how:      client.Text(d["how"]),
		},
		state: client.Text(d["state"]),
	}
	sealed, err2 := base64.StdEncoding.DecodeString(client.Text(d["sealed"]))
	r.sealed = sealed
	var whole bool
	r.renewal, whole = parseRenewal(d)
	r.inForce, r.pending = r.part, r.next
	r.spoiled = err != nil || err2 != nil || !whole || r.grant.Check() != nil || client.Text(d["principal"]) != p.String()
	return r
}

func (r record) body() map[string]any {
	d := map[string]any{
		"accessor": r.accessor, "tenant": r.grant.Tenant.String(), "principal": r.grant.Principal.String(), "agent": r.grant.Agent,
		"credentials": append([]string{}, r.grant.Credentials...), "created": stamp(r.grant.CreatedAt), "state": r.state,
	}
	if len(r.sealed) > 0 {
		d["sealed"] = base64.StdEncoding.EncodeToString(r.sealed)
	}
	if !r.grant.RevokedAt.IsZero() {
		d["revoked"] = stamp(r.grant.RevokedAt)
	}
	if r.how != "" {
		d["how"] = r.how
	}
	r.renewal.into(d)
	return map[string]any{"data": d, "options": map[string]any{"cas": r.version}}
}

// writeRecord writes an entry over the version that was read.
func (v *Vault) writeRecord(ctx context.Context, r record) error {
	_, err := v.write(ctx, "write the index of grants", v.indexPath("data", r.grant.Principal, r.grant.ID), r.body())
	return err
}

// versionOf an entry that may be deleted, for check-and-set.
func (v *Vault) versionOf(ctx context.Context, p protocol.PrincipalID, id protocol.GrantID) (int64, error) {
	a, err := v.read(ctx, "read the index of grants", v.indexPath("metadata", p, id))
	if client.KindOf(err) == client.Absent {
		return 0, nil
	}
	return client.Number(a.Data["current_version"]), err
}

// now in whole microseconds: what is stored is what is compared.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

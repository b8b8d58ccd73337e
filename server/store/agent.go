package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

const definitionColumns = `d.tenant, d.name, d.digest, d.version, d.filename, d.source, d.created_at, d.created_by`

// inTenant shows a definition to every principal of its tenant.
const inTenant = `($1 = '' OR (d.tenant = $1 AND EXISTS (SELECT 1 FROM principals px WHERE px.id = $2 AND px.tenant = $1)))`

func scanDefinition(r scanner) (d policy.Definition, err error) {
	err = r.Scan(&d.Tenant, &d.Name, &d.Digest, &d.Version, &d.Filename, blob(&d.Source), at(&d.CreatedAt), &d.CreatedBy)
	return d, err
}

var (
	currentDefinition = define(`SELECT ` + definitionColumns + ` FROM definitions d
		WHERE ` + inTenant + ` AND d.tenant = $3 AND d.name = $4 ORDER BY d.version DESC LIMIT 1`)
	definitionByDigest = define(`SELECT ` + definitionColumns + ` FROM definitions d
		WHERE ` + inTenant + ` AND d.tenant = $3 AND d.name = $4 AND d.digest = $5 ORDER BY d.version DESC LIMIT 1`)
	currentDefinitions = define(`SELECT ` + definitionColumns + ` FROM definitions d
		WHERE ` + inTenant + ` AND d.version = (SELECT MAX(m.version) FROM definitions m WHERE m.tenant = d.tenant AND m.name = d.name)
		ORDER BY d.tenant, d.name`)
	insertDefinition = define(`INSERT INTO definitions
		(tenant, name, digest, version, filename, source, created_at, created_by)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`)
)

// PutDefinition stores a version; the same digest as the current one changes nothing.
func (tx *Tx) PutDefinition(d policy.Definition) (stored policy.Definition, changed bool, err error) {
	if err := tx.administers("changing an agent", d.Tenant); err != nil {
		return policy.Definition{}, false, err
	}
	current, err := first(tx, scanDefinition, currentDefinition, tx.mine(d.Tenant, d.Name))
	switch {
	case err == errNoRow:
		d.Version = 1
	case err != nil:
		return policy.Definition{}, false, err
	case current.Digest == d.Digest:
		return current, false, nil
	default:
		d.Version = current.Version + 1
	}
	if d.CreatedAt.IsZero() {
		d.CreatedAt = tx.Now
	}
	_, err = tx.exec(insertDefinition, d.Tenant, d.Name, d.Digest, d.Version, d.Filename, d.Source, d.CreatedAt, d.CreatedBy)
	return d, err == nil, err
}

// Definition returns one version, or the current one when digest is empty.
func (tx *Tx) Definition(tenant protocol.TenantID, name, digest string) (policy.Definition, error) {
	if digest == "" {
		return one(tx, "agent", name, scanDefinition, currentDefinition, tx.mine(tenant, name))
	}
	return one(tx, "agent", name+"@"+digest, scanDefinition, definitionByDigest, tx.mine(tenant, name, digest))
}

// Definitions returns the current version of every agent of the caller's tenant.
func (tx *Tx) Definitions() ([]policy.Definition, error) {
	return list(tx, scanDefinition, currentDefinitions, tx.mine())
}

const instanceColumns = `i.id, i.tenant, i.principal, i.agent, i.generation, i.created_at`

func scanInstance(r scanner) (i policy.Instance, err error) {
	err = r.Scan(&i.ID, &i.Tenant, &i.Principal, &i.Agent, &i.Generation, at(&i.CreatedAt))
	return i, err
}

var (
	instanceByAgent = define(`SELECT ` + instanceColumns + ` FROM instances i
		WHERE ` + own("i") + ` AND i.tenant = $3 AND i.principal = $4 AND i.agent = $5`)
	instanceByID = define(`SELECT ` + instanceColumns + ` FROM instances i
		WHERE ` + managed("i") + ` AND i.id = $4`)
	insertInstance = define(`INSERT INTO instances (id, tenant, principal, agent, generation, created_at)
		VALUES ($1, $2, $3, $4, $5, $6)`)
	raiseGeneration = define(`UPDATE instances SET generation = generation + 1 WHERE id = $1`)
)

// EnsureInstance returns the one instance of (tenant, principal, agent).
func (tx *Tx) EnsureInstance(tenant protocol.TenantID, principal protocol.PrincipalID, agent string) (policy.Instance, error) {
	if err := tx.concerns("an instance", tenant, principal); err != nil {
		return policy.Instance{}, err
	}
	i, err := first(tx, scanInstance, instanceByAgent, tx.mine(tenant, principal, agent))
	if err != errNoRow {
		return i, err
	}
	i = policy.Instance{ID: newID[protocol.InstanceID](tx), Tenant: tenant, Principal: principal,
		Agent: agent, Generation: 1, CreatedAt: tx.Now}
	_, err = tx.exec(insertInstance, i.ID, i.Tenant, i.Principal, i.Agent, i.Generation, i.CreatedAt)
	return i, err
}

// RaiseGeneration makes every earlier generation's capabilities void; the caller adds the floor. INV-16.
func (tx *Tx) RaiseGeneration(id protocol.InstanceID) (policy.Instance, error) {
	i, err := one(tx, "instance", id, scanInstance, instanceByID, tx.managing(id))
	if err != nil {
		return i, err
	}
	if _, err := tx.exec(raiseGeneration, id); err != nil {
		return i, err
	}
	i.Generation++
	return i, nil
}

package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

const grantColumns = `g.id, g.tenant, g.principal, g.agent, g.credentials, g.sealed, g.created_at, g.revoked_at, g.revoked_why, g.receipt,
	g.rotation, g.rotation_at, g.rotated_at, g.rotation_receipt, g.proof, g.proven_at`

func scanGrant(r scanner) (g policy.Grant, err error) {
	err = r.Scan(&g.ID, &g.Tenant, &g.Principal, &g.Agent, document(&g.Credentials), blob(&g.Sealed), at(&g.CreatedAt), at(&g.RevokedAt), &g.RevokedWhy, &g.Receipt,
		&g.Rotation, at(&g.RotationAt), at(&g.RotatedAt), &g.RotationReceipt, &g.Proof, at(&g.ProvenAt))
	return g, err
}

var (
	insertGrant = define(`INSERT INTO grants (id, tenant, principal, agent, credentials, sealed, created_at, revoked_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, 0) ON CONFLICT DO NOTHING`)
	grantByID     = define(`SELECT ` + grantColumns + ` FROM grants g WHERE ` + managed("g") + ` AND g.id = $4`)
	standingGrant = define(`SELECT ` + grantColumns + ` FROM grants g WHERE ` + managed("g") + `
		AND g.principal = $4 AND g.agent = $5
		ORDER BY CASE WHEN g.revoked_at = 0 THEN 0 ELSE 1 END, g.created_at DESC, g.id DESC LIMIT 1`)
	grantsInForce = define(`SELECT ` + grantColumns + ` FROM grants g WHERE ` + managed("g") + `
		AND g.principal = $4 AND g.agent = $5 AND g.revoked_at = 0 ORDER BY g.created_at DESC, g.id DESC`)
	grantsOf = define(`SELECT ` + grantColumns + ` FROM grants g WHERE ` + managed("g") + `
		AND ($4 = 1 OR g.revoked_at = 0) ORDER BY g.created_at, g.id`)
	revokeGrant = define(`UPDATE grants SET revoked_at = $2, revoked_why = $3 WHERE id = $1 AND revoked_at = 0`)
	keepReceipt = define(`UPDATE grants SET receipt = $2 WHERE id = $1 AND revoked_at <> 0 AND receipt = ''`)
	keepProof   = define(`UPDATE grants SET proof = $2, proven_at = $3 WHERE id = $1 AND revoked_at <> 0 AND receipt <> '' AND proof = ''`)
)

// InsertGrant stores what the broker sealed for a principal and an agent.
func (tx *Tx) InsertGrant(g policy.Grant) error {
	if tx.administers("", g.Tenant) != nil {
		if err := tx.concerns("a grant", g.Tenant, g.Principal); err != nil {
			return err
		}
	}
	n, err := tx.exec(insertGrant, g.ID, g.Tenant, g.Principal, g.Agent, toJSON(g.Credentials), g.Sealed, g.CreatedAt)
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeAlreadyExists, "grant %s exists already", g.ID)
	}
	tx.touch(TopicTurns)
	return err
}

func (tx *Tx) Grant(id protocol.GrantID) (policy.Grant, error) {
	return one(tx, "grant", id, scanGrant, grantByID, tx.managing(id))
}

// StandingGrant is the newest grant of a principal to an agent that is in force,
// or the newest revoked one when none is: "never given" and "taken back" differ.
func (tx *Tx) StandingGrant(p protocol.PrincipalID, agent string) (policy.Grant, error) {
	return one(tx, "grant to agent", agent, scanGrant, standingGrant, tx.managing(p, agent))
}

// GrantsInForce are all grants of a principal to an agent that are in force, the
// newest first.
func (tx *Tx) GrantsInForce(p protocol.PrincipalID, agent string) ([]policy.Grant, error) {
	return list(tx, scanGrant, grantsInForce, tx.managing(p, agent))
}

// Grants of the caller, and of its tenant for an admin.
func (tx *Tx) Grants(includeRevoked bool) ([]policy.Grant, error) {
	return list(tx, scanGrant, grantsOf, tx.managing(includeRevoked))
}

// RevokeGrant records the revocation once, with why; the caller adds the floor in
// the same transaction. INV-13.
func (tx *Tx) RevokeGrant(id protocol.GrantID, why string) (policy.Grant, error) {
	g, err := tx.Grant(id)
	if err != nil || !g.RevokedAt.IsZero() {
		return g, err
	}
	if _, err := tx.exec(revokeGrant, id, tx.Now, why); err != nil {
		return g, err
	}
	g.RevokedAt, g.RevokedWhy = tx.Now, why
	tx.touch(TopicTurns)
	return g, nil
}

// KeepReceipt stores the first signed receipt of a revocation, and beside it the first
// later one that shows everything gone, where the first does not: what was signed is
// never written over. Any other is its asker's to keep.
func (tx *Tx) KeepReceipt(id protocol.GrantID, receipt string) error {
	g, err := tx.Grant(id)
	switch later := (policy.Grant{Receipt: receipt}); {
	case err != nil || g.RevokedAt.IsZero():
		return err
	case g.Receipt == "":
		_, err = tx.exec(keepReceipt, id, receipt)
	case g.Pending() != "" && later.Left() == "":
		_, err = tx.exec(keepProof, id, receipt, tx.Now)
	}
	return err
}

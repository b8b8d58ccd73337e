package store

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

var (
	beginRotation = define(`UPDATE grants SET rotation = $2, rotation_at = $3 WHERE id = $1 AND rotation = '' AND revoked_at = 0`)
	keepRotated   = define(`UPDATE grants SET sealed = $3, rotated_at = $4 WHERE id = $1 AND rotation = $2 AND rotation <> '' AND revoked_at = 0`)
	renewedIn     = define(`SELECT ` + grantColumns + ` FROM grants g WHERE g.rotated_at > 0 AND g.rotated_at > $1 AND g.rotated_at <= $2 AND g.revoked_at = 0 AND g.rotation = ''
		ORDER BY g.rotated_at, g.id`)
	endRotation = define(`UPDATE grants SET rotation = '', rotation_at = 0, rotation_receipt = $3 WHERE id = $1 AND rotation = $2 AND rotation <> ''`)
)

// BeginRotation notes that the secret part of a grant is to be renewed, with the
// cleanup that goes on with it, until EndRotation. One that is under way is the answer
// itself. INV-4, INV-18.
func (tx *Tx) BeginRotation(id protocol.GrantID, rotation protocol.CleanupID, again time.Time) (policy.Grant, error) {
	g, err := tx.Grant(id)
	switch {
	case err != nil:
		return g, err
	case !g.RevokedAt.IsZero():
		return g, protocol.Errorf(protocol.CodeConflict, "grant %s was revoked: there is nothing to renew; make another with bivouac grant create --agent %s", id, g.Agent)
	case g.Rotation != "":
		return g, nil
	}
	if _, err := tx.exec(beginRotation, id, rotation, tx.Now); err != nil {
		return g, err
	}
	g.Rotation, g.RotationAt = rotation, tx.Now
	return g, tx.InsertCleanup(policy.Cleanup{ID: rotation, Tenant: g.Tenant, Kind: policy.CleanupRotation, Subject: id.String(), CreatedAt: tx.Now, NextAt: again})
}

// KeepRotated stores the new sealed grant while its rotation is under way.
func (tx *Tx) KeepRotated(id protocol.GrantID, rotation protocol.CleanupID, sealed []byte) error {
	if err := tx.internal("rotating grants"); err != nil {
		return err
	}
	n, err := tx.exec(keepRotated, id, rotation, sealed, tx.Now)
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeConflict, "the rotation %s of grant %s is over, or the grant", rotation, id)
	}
	tx.touch(TopicTurns)
	return err
}

// RenewedIn are the grants in force whose secret part was renewed last after one moment
// and not after another, and is not being renewed.
func (tx *Tx) RenewedIn(after, until time.Time) ([]policy.Grant, error) {
	if err := tx.internal("reading what was renewed"); err != nil {
		return nil, err
	}
	return list(tx, scanGrant, renewedIn, []any{after, until})
}

// EndRotation says that nothing is left to do for a rotation. It keeps the receipt.
func (tx *Tx) EndRotation(id protocol.GrantID, rotation protocol.CleanupID, receipt string) error {
	if err := tx.internal("rotating grants"); err != nil {
		return err
	}
	n, err := tx.exec(endRotation, id, rotation, receipt)
	if err == nil && n == 0 {
		return absent("open rotation", rotation)
	}
	return err
}

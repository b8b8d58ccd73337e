package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

const artifactColumns = `f.digest, f.tenant, f.principal, f.session, f.turn, f.kind, f.size, f.created_at`

func scanArtifact(r scanner) (a policy.Artifact, err error) {
	err = r.Scan(&a.Digest, &a.Tenant, &a.Principal, &a.Session, &a.Turn, &a.Kind, &a.Size, at(&a.CreatedAt))
	return a, err
}

// worksOn shows an artifact to its principal, and to a runner while it holds an
// attempt that needs it: of the attempt's session, or the workspace of its turn.
const worksOn = `($1 = '' OR (f.tenant = $1 AND (f.principal = $2 OR EXISTS (
	SELECT 1 FROM attempts ax JOIN turns tx ON tx.id = ax.subject_id
	WHERE ax.runner = $2 AND ax.subject_kind = 'agent-turn' AND ax.state IN ` + heldStates + ` AND tx.principal = f.principal
		AND (f.session = tx.session OR EXISTS (SELECT 1 FROM turns ty WHERE ty.session = tx.session
			AND (ty.workspace_digest = f.digest OR ty.patch_digest = f.digest)))))))`

var (
	insertArtifact = define(`INSERT INTO artifacts (digest, tenant, principal, session, turn, kind, size, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING`)
	countArtifacts = define(`SELECT COUNT(*) FROM artifacts f WHERE f.principal = $1 AND f.digest = $2`)
	artifactOf     = define(`SELECT ` + artifactColumns + ` FROM artifacts f WHERE ` + worksOn + ` AND f.digest = $3
		ORDER BY f.created_at, f.session LIMIT 1`)
	artifactIn = define(`SELECT ` + artifactColumns + ` FROM artifacts f WHERE ` + worksOn + ` AND f.digest = $3 AND f.session = $4
		LIMIT 1`)
	workOfRunner = define(`SELECT COUNT(*) FROM attempts ax JOIN turns tx ON tx.id = ax.subject_id
		WHERE ax.runner = $1 AND ax.subject_kind = 'agent-turn' AND ax.state IN ` + heldStates + `
			AND tx.tenant = $2 AND tx.principal = $3 AND tx.session = $4 AND tx.id = $5`)
)

// PutArtifact makes a blob readable to a principal, and part of a session if it
// names one; each session that uses the same bytes has a row of its own. existed
// says that the principal had the bytes before. A runner puts only what belongs
// to the turn of an attempt that it holds.
func (tx *Tx) PutArtifact(a policy.Artifact) (existed bool, err error) {
	if tx.caller.kind == callerRunner {
		n, err := first(tx, number, workOfRunner, []any{tx.caller.runner, tx.caller.tenant, a.Principal, a.Session, a.Turn})
		if err != nil {
			return false, err
		}
		if n == 0 || a.Tenant != tx.caller.tenant {
			return false, absent("turn", a.Turn)
		}
	} else if err := tx.concerns("an artifact", a.Tenant, a.Principal); err != nil {
		return false, err
	}
	n, err := first(tx, number, countArtifacts, []any{a.Principal, a.Digest})
	if err != nil {
		return false, err
	}
	_, err = tx.exec(insertArtifact, a.Digest, a.Tenant, a.Principal, a.Session, a.Turn, a.Kind, a.Size, a.CreatedAt)
	return n > 0, err
}

// Artifact is found only through a row of the caller; knowing a digest is not enough.
func (tx *Tx) Artifact(digest string) (policy.Artifact, error) {
	return one(tx, "artifact", digest, scanArtifact, artifactOf, tx.mine(digest))
}

// SessionArtifact is an artifact that was put for this session, whoever else has
// the same bytes.
func (tx *Tx) SessionArtifact(s protocol.SessionID, digest string) (policy.Artifact, error) {
	return one(tx, "artifact", digest, scanArtifact, artifactIn, tx.mine(digest, s))
}

var (
	baseWorkspace = define(`SELECT t.n, t.workspace_digest FROM turns t WHERE ` + own("t") + ` AND t.session = $3
		AND t.workspace_digest <> '' AND (t.activated_at > 0 OR t.id = $4) ORDER BY t.n DESC LIMIT 1`)
	acceptedPatches = define(`SELECT t.patch_digest FROM turns t WHERE ` + own("t") + ` AND t.session = $3
		AND t.n >= $4 AND t.state = 'COMPLETED' AND t.patch_digest <> '' ORDER BY t.n`)
)

// AcceptedPatches are the patches of the session's completed turns since its newest uploaded workspace, oldest first.
// A workspace that waits in the queue behind the turn that is active, or next, is not seen yet.
func (tx *Tx) AcceptedPatches(s protocol.SessionID) (workspace string, patches []string, err error) {
	next, err := first(tx, scanTurn, activeTurn, tx.mine(s))
	if err == errNoRow {
		next, err = first(tx, scanTurn, firstQueued, tx.mine(s))
	}
	if err != nil && err != errNoRow {
		return "", nil, err
	}
	type base struct {
		n         int64
		workspace string
	}
	b, err := first(tx, func(r scanner) (b base, err error) {
		err = r.Scan(&b.n, &b.workspace)
		return b, err
	}, baseWorkspace, tx.mine(s, next.ID))
	if err != nil && err != errNoRow { // without one the session began in an empty workspace
		return "", nil, err
	}
	patches, err = list(tx, func(r scanner) (d string, err error) {
		err = r.Scan(&d)
		return d, err
	}, acceptedPatches, tx.mine(s, b.n))
	return b.workspace, patches, err
}

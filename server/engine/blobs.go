package engine

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// heldTurn reads the attempt of a turn that a runner holds under a fence.
func heldTurn(tx *store.Tx, c store.Caller, id protocol.AttemptID, f protocol.Fence) (execution.Attempt, error) {
	a, err := tx.Attempt(id)
	if err != nil {
		return a, err
	}
	if a.Runner != c.Runner() || a.SubjectKind != execution.SubjectTurn {
		return a, protocol.Errorf(protocol.CodeNotFound, "attempt %s not found", id)
	}
	return a, a.CheckFence(f)
}

// MayPutBlob checks, before any byte is taken, that the attempt may store blobs.
func (e *Engine) MayPutBlob(ctx context.Context, c store.Caller, attempt protocol.AttemptID, fence protocol.Fence) error {
	return e.cfg.Store.View(ctx, c, func(tx *store.Tx) error {
		_, err := heldTurn(tx, c, attempt, fence)
		return err
	})
}

// BlobStored makes a stored blob an artifact of the attempt's turn.
func (e *Engine) BlobStored(ctx context.Context, c store.Caller, attempt protocol.AttemptID, fence protocol.Fence, digest string, size int64) error {
	if err := e.visible(ctx, c, attempt); err != nil {
		return err
	}
	return e.cfg.Store.Update(ctx, store.AsLoop("blob"), func(tx *store.Tx) error {
		if _, err := heldTurn(tx, c, attempt, fence); err != nil {
			return err
		}
		t, err := tx.TurnOfAttempt(attempt)
		if err != nil {
			return err
		}
		_, err = tx.PutArtifact(policy.Artifact{Digest: digest, Tenant: t.Tenant, Principal: t.Principal, Session: t.Session,
			Turn: t.ID, Kind: policy.ArtifactPatch, Size: size, CreatedAt: tx.Now})
		return err
	})
}

// ArtifactStored makes a stored blob an artifact that its sender may use in a
// session, and reports one that was there.
func (e *Engine) ArtifactStored(ctx context.Context, c store.Caller, digest string, size int64) (existed bool, err error) {
	err = e.cfg.Store.Update(ctx, c, func(tx *store.Tx) (err error) {
		existed, err = tx.PutArtifact(policy.Artifact{Digest: digest, Tenant: c.Tenant(), Principal: c.Principal(),
			Kind: policy.ArtifactWorkspace, Size: size, CreatedAt: tx.Now})
		return err
	})
	return existed, err
}

// MayGetBlob checks that the attempt's work names the blob: knowing a digest is
// not enough.
func (e *Engine) MayGetBlob(ctx context.Context, c store.Caller, attempt protocol.AttemptID, fence protocol.Fence, digest string) error {
	return e.cfg.Store.View(ctx, c, func(tx *store.Tx) error {
		a, err := heldTurn(tx, c, attempt, fence)
		if err != nil {
			return err
		}
		work := &runnerv1.Work{}
		if err := proto.Unmarshal(a.Work, work); err != nil {
			return protocol.Errorf(protocol.CodeDataLoss, "work of attempt %s cannot be read: %w", attempt, err)
		}
		turn := work.GetTurn()
		named := append([]string{turn.GetWorkspaceDigest(), turn.GetCheckpointPatchDigest()}, turn.GetPatchDigests()...)
		for _, d := range named {
			if d != "" && d == digest {
				return nil
			}
		}
		return protocol.Errorf(protocol.CodeNotFound, "blob %s not found", digest)
	})
}

// stagingEvery bounds how often watchers are told how far a workspace has come.
const stagingEvery = 200 * time.Millisecond

// Staged returns what a server calls while it sends a blob of an attempt, so that who
// watches the session sees how far the workspace has come. Nothing is kept of it, and
// of anything but a turn's workspace nobody is told.
func (e *Engine) Staged(ctx context.Context, c store.Caller, attempt protocol.AttemptID, digest string, of int64) (told func(n int)) {
	at := Staging{Runner: c.Runner(), Of: of}
	var session protocol.SessionID
	err := e.cfg.Store.View(ctx, store.AsLoop("staging"), func(tx *store.Tx) error {
		a, err := tx.Attempt(attempt)
		if err != nil || a.Runner != c.Runner() || a.SubjectKind != execution.SubjectTurn {
			return err
		}
		work := &runnerv1.Work{}
		if err := proto.Unmarshal(a.Work, work); err != nil || work.GetTurn().GetWorkspaceDigest() != digest {
			return err
		}
		t, err := tx.Turn(protocol.TurnID(a.SubjectID))
		session, at.Turn = t.Session, t.ID
		return err
	})
	if err != nil || session == "" {
		return func(int) {} // it is for people alone
	}
	last := time.Now()
	return func(n int) {
		if at.Sent += int64(n); at.Sent < of && time.Since(last) < stagingEvery {
			return
		}
		last = time.Now()
		e.live.tell(session, Live{Staging: at})
	}
}

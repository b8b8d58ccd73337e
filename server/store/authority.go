package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

func (tx *Tx) InsertGrant(g policy.Grant) error {
	panic("store: not built")
}

func (tx *Tx) Grant(id protocol.GrantID) (policy.Grant, error) {
	panic("store: not built")
}

// ActiveGrant is the newest grant of a principal to an agent that is not revoked.
func (tx *Tx) ActiveGrant(p protocol.PrincipalID, agent string) (policy.Grant, error) {
	panic("store: not built")
}

func (tx *Tx) Grants(includeRevoked bool) ([]policy.Grant, error) {
	panic("store: not built")
}

// RevokeGrant records the revocation once; the caller adds the floor in the same transaction. INV-13.
func (tx *Tx) RevokeGrant(id protocol.GrantID) (policy.Grant, error) {
	panic("store: not built")
}

// AddFloor appends to the feed.
func (tx *Tx) AddFloor(f policy.Floor) (policy.Floor, error) {
	panic("store: not built")
}

// Floors after a sequence, and the newest sequence.
func (tx *Tx) Floors(after int64, limit int) ([]policy.Floor, int64, error) {
	panic("store: not built")
}

func (tx *Tx) InsertSlice(s policy.Slice) error {
	panic("store: not built")
}

func (tx *Tx) Slice(id protocol.SliceID) (policy.Slice, error) {
	panic("store: not built")
}

// SaveSlice writes ceiling, draw and end; a ceiling never falls. INV-19.
func (tx *Tx) SaveSlice(s policy.Slice) error {
	panic("store: not built")
}

func (tx *Tx) OpenSlices(limit int) ([]policy.Slice, error) {
	panic("store: not built")
}

func (tx *Tx) InsertCleanup(c policy.Cleanup) error {
	panic("store: not built")
}

func (tx *Tx) CleanupsDue(limit int) ([]policy.Cleanup, error) {
	panic("store: not built")
}

func (tx *Tx) SaveCleanup(c policy.Cleanup) error {
	panic("store: not built")
}

func (tx *Tx) PutArtifact(a policy.Artifact) (existed bool, err error) {
	panic("store: not built")
}

// Artifact is found only through a row of the caller; knowing a digest is not enough.
func (tx *Tx) Artifact(digest string) (policy.Artifact, error) {
	panic("store: not built")
}

// AcceptedPatches are the patches of the session's completed turns since its newest uploaded workspace, oldest first.
func (tx *Tx) AcceptedPatches(s protocol.SessionID) (workspace string, patches []string, err error) {
	panic("store: not built")
}

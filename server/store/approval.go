package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/session"
)

// InsertApproval refuses a second pending approval of one subject.
func (tx *Tx) InsertApproval(a session.Approval) error {
	panic("store: not built")
}

func (tx *Tx) Approval(id protocol.ApprovalID) (session.Approval, error) {
	panic("store: not built")
}

func (tx *Tx) Approvals(includeDecided bool) ([]session.Approval, error) {
	panic("store: not built")
}

func (tx *Tx) ApprovalsOfTurn(t protocol.TurnID) ([]session.Approval, error) {
	panic("store: not built")
}

// SaveApproval is guarded by the prior state.
func (tx *Tx) SaveApproval(a session.Approval, prior session.ApprovalState) error {
	panic("store: not built")
}

// ConsumeApproval is APPROVED → CONSUMED by exactly one action; a constraint holds it. INV-6.
func (tx *Tx) ConsumeApproval(id protocol.ApprovalID, by protocol.ActionID, digest string) error {
	panic("store: not built")
}

func (tx *Tx) ApprovalsPastExpiry(limit int) ([]session.Approval, error) {
	panic("store: not built")
}

package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/session"
	"time"
)

// InsertTurn queues a turn at the end of its session's order and returns it with N set.
func (tx *Tx) InsertTurn(t session.Turn) (session.Turn, error) {
	panic("store: not built")
}

func (tx *Tx) Turn(id protocol.TurnID) (session.Turn, error) {
	panic("store: not built")
}

func (tx *Tx) TurnByMessage(s protocol.SessionID, messageID string) (session.Turn, error) {
	panic("store: not built")
}

// Turns pages the turns of a session, or of the caller when the session is zero, newest first.
func (tx *Tx) Turns(s protocol.SessionID, limit int, cursor string) ([]session.Turn, string, error) {
	panic("store: not built")
}

// ActiveTurn is the turn that occupies the session; not_found when none does. INV-1.
func (tx *Tx) ActiveTurn(s protocol.SessionID) (session.Turn, error) {
	panic("store: not built")
}

// QueueDepth counts QUEUED turns; zero ids do not narrow.
func (tx *Tx) QueueDepth(tenant protocol.TenantID, principal protocol.PrincipalID, s protocol.SessionID) (int, error) {
	panic("store: not built")
}

// QueuePosition is 1 for the turn that is activated next in its session.
func (tx *Tx) QueuePosition(id protocol.TurnID) (int, error) {
	panic("store: not built")
}

// Activatable returns, for sessions without an active turn, the first queued turn, fair across tenants.
func (tx *Tx) Activatable(limit int) ([]session.Turn, error) {
	panic("store: not built")
}

// SaveTurn writes every mutable column, guarded by prior state and owner fence; a guard that
// fails is stale_fence or conflict. A second active turn of a session is refused. INV-1, INV-3.
func (tx *Tx) SaveTurn(t session.Turn, prior session.TurnState, fence protocol.Fence) error {
	panic("store: not built")
}

// OwnedTurns are the active turns whose owner row is the replica's.
func (tx *Tx) OwnedTurns(r protocol.ReplicaID) ([]session.Turn, error) {
	panic("store: not built")
}

// OrphanedTurns are active turns whose owner row has expired.
func (tx *Tx) OrphanedTurns(limit int) ([]session.Turn, error) {
	panic("store: not built")
}

// RenewTurns extends the owner rows of a replica.
func (tx *Tx) RenewTurns(r protocol.ReplicaID, until time.Time) error {
	panic("store: not built")
}

// TurnsPastDeadline are queued turns past QueueDeadline and active ones past Deadline or ReconcileDeadline.
func (tx *Tx) TurnsPastDeadline(limit int) ([]session.Turn, error) {
	panic("store: not built")
}

// TurnOfAttempt joins the two worlds for the engine alone.
func (tx *Tx) TurnOfAttempt(id protocol.AttemptID) (session.Turn, error) {
	panic("store: not built")
}

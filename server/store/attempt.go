package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/execution"
)

func (tx *Tx) InsertAttempt(a execution.Attempt) error {
	panic("store: not built")
}

func (tx *Tx) Attempt(id protocol.AttemptID) (execution.Attempt, error) {
	panic("store: not built")
}

func (tx *Tx) AttemptsOfSubject(kind execution.SubjectKind, subject string) ([]execution.Attempt, error) {
	panic("store: not built")
}

func (tx *Tx) AttemptsIn(limit int, states ...execution.AttemptState) ([]execution.Attempt, error) {
	panic("store: not built")
}

// AttemptsOfRunner returns its attempts that are not terminal.
func (tx *Tx) AttemptsOfRunner(r protocol.RunnerID) ([]execution.Attempt, error) {
	panic("store: not built")
}

// SaveAttempt writes every mutable column, guarded by prior state and fence. INV-3.
func (tx *Tx) SaveAttempt(a execution.Attempt, prior execution.AttemptState, fence protocol.Fence) error {
	panic("store: not built")
}

// ClaimAttempt is OFFERED → CLAIMED by compare-and-set: the same runner and nonce again gets the
// same answer, any other is already claimed (conflict). It sets fence, boot nonce and ClaimedAt. INV-14.
func (tx *Tx) ClaimAttempt(id protocol.AttemptID, runner protocol.RunnerID, bootNonce string) (execution.Attempt, error) {
	panic("store: not built")
}

// PutRecords appends journal records of an attempt; known sequences are skipped. Evidence marks a stale fence.
func (tx *Tx) PutRecords(id protocol.AttemptID, fence protocol.Fence, evidence bool, records []Record) error {
	panic("store: not built")
}

func (tx *Tx) Records(id protocol.AttemptID) ([]Record, error) {
	panic("store: not built")
}

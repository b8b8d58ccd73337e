package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"time"
)

func (tx *Tx) InsertRunner(r execution.Runner) error {
	panic("store: not built")
}

func (tx *Tx) Runner(id protocol.RunnerID) (execution.Runner, error) {
	panic("store: not built")
}

func (tx *Tx) RunnerByThumbprint(thumbprint string) (execution.Runner, error) {
	panic("store: not built")
}

// Runners of the caller: its own and those bound to it; an admin's: the tenant's; internal: all active.
func (tx *Tx) Runners() ([]execution.Runner, error) {
	panic("store: not built")
}

// SaveRunner writes name, state, facts and last-seen, guarded by the prior state.
func (tx *Tx) SaveRunner(r execution.Runner, prior execution.RunnerState) error {
	panic("store: not built")
}

func (tx *Tx) PutBinding(b execution.Binding) (execution.Binding, error) {
	panic("store: not built")
}

func (tx *Tx) RemoveBinding(id protocol.BindingID) error {
	panic("store: not built")
}

// BindingsOf a principal that are in force.
func (tx *Tx) BindingsOf(p protocol.PrincipalID) ([]execution.Binding, error) {
	panic("store: not built")
}

func (tx *Tx) BindingsOfRunner(r protocol.RunnerID) ([]execution.Binding, error) {
	panic("store: not built")
}

func (tx *Tx) InsertJoinCode(c execution.JoinCode) error {
	panic("store: not built")
}

func (tx *Tx) JoinCode(hash []byte) (execution.JoinCode, error) {
	panic("store: not built")
}

// UseJoinCode is single use: the same key may repeat, another key or an expired code is refused.
func (tx *Tx) UseJoinCode(hash []byte, thumbprint string, runner protocol.RunnerID) error {
	panic("store: not built")
}

// TakeConnection raises the epoch by compare-and-set and leases the row to the replica.
func (tx *Tx) TakeConnection(c execution.Connection, lastEpoch int64) (execution.Connection, error) {
	panic("store: not built")
}

func (tx *Tx) Connection(r protocol.RunnerID) (execution.Connection, error) {
	panic("store: not built")
}

func (tx *Tx) Connections() ([]execution.Connection, error) {
	panic("store: not built")
}

// RenewConnections extends the replica's rows; rows that were taken over are left alone.
func (tx *Tx) RenewConnections(r protocol.ReplicaID, runners []protocol.RunnerID, until time.Time) error {
	panic("store: not built")
}

// ReleaseConnection expires the row now, if the epoch is still current.
func (tx *Tx) ReleaseConnection(r protocol.RunnerID, epoch int64) error {
	panic("store: not built")
}

// PutMail appends a command to the runner's mailbox and returns its sequence.
func (tx *Tx) PutMail(m execution.MailboxItem) (int64, error) {
	panic("store: not built")
}

func (tx *Tx) Mail(r protocol.RunnerID, after int64, limit int) ([]execution.MailboxItem, error) {
	panic("store: not built")
}

// AckMail deletes everything up to seq.
func (tx *Tx) AckMail(r protocol.RunnerID, seq int64) error {
	panic("store: not built")
}

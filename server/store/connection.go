package store

import (
	"errors"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
)

const connectionColumns = `c.runner, c.epoch, c.replica, c.boot_nonce, c.transport, c.taken_at, c.expires_at`

func scanConnection(r scanner) (c execution.Connection, err error) {
	err = r.Scan(&c.Runner, &c.Epoch, &c.Replica, &c.BootNonce, &c.Transport, at(&c.TakenAt), at(&c.ExpiresAt))
	return c, err
}

var (
	connectionOf = define(`SELECT ` + connectionColumns + ` FROM connections c JOIN runners r ON r.id = c.runner
		WHERE ` + reachable("r") + ` AND c.runner = $4`)
	connections = define(`SELECT ` + connectionColumns + ` FROM connections c JOIN runners r ON r.id = c.runner
		WHERE ` + reachable("r") + ` ORDER BY c.runner`)
	insertConnection = define(`INSERT INTO connections (runner, epoch, replica, boot_nonce, transport, taken_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING`)
	takeConnection = define(`UPDATE connections SET epoch = $3, replica = $4, boot_nonce = $5, transport = $6, taken_at = $7, expires_at = $8
		WHERE runner = $1 AND epoch = $2`)
	renewConnection   = define(`UPDATE connections SET expires_at = $3 WHERE runner = $1 AND replica = $2`)
	releaseConnection = define(`UPDATE connections SET expires_at = $3 WHERE runner = $1 AND epoch = $2 AND expires_at > $3`)
)

// TakeConnection raises the epoch by compare-and-set and leases the row to the
// replica. lastEpoch is the one the caller read; zero when it read none. The new
// epoch is the next one, or c.Epoch where that is higher: a runner may remember
// more than a store that was put back.
func (tx *Tx) TakeConnection(c execution.Connection, lastEpoch int64) (execution.Connection, error) {
	if _, err := tx.attended(c.Runner); err != nil {
		return c, err
	}
	c.Epoch = max(c.Epoch, lastEpoch+1)
	if c.TakenAt.IsZero() {
		c.TakenAt = tx.Now
	}
	var n int64
	var err error
	if lastEpoch == 0 {
		n, err = tx.exec(insertConnection, c.Runner, c.Epoch, c.Replica, c.BootNonce, c.Transport, c.TakenAt, c.ExpiresAt)
	} else {
		n, err = tx.exec(takeConnection, c.Runner, lastEpoch, c.Epoch, c.Replica, c.BootNonce, c.Transport, c.TakenAt, c.ExpiresAt)
	}
	if err != nil {
		return c, err
	}
	if n == 0 {
		return c, protocol.Errorf(protocol.CodeConflict, "runner %s connected again meanwhile: epoch %d is no longer the last", c.Runner, lastEpoch)
	}
	tx.touch(TopicAttempts)
	return c, nil
}

// attended is a runner that the caller speaks for: itself, or internal.
func (tx *Tx) attended(id protocol.RunnerID) (execution.Runner, error) {
	if c := tx.caller; !c.Internal() && c.runner != id {
		return execution.Runner{}, absent("runner", id)
	}
	return tx.Runner(id)
}

func (tx *Tx) Connection(r protocol.RunnerID) (execution.Connection, error) {
	return one(tx, "connection of runner", r, scanConnection, connectionOf, tx.managing(r))
}

func (tx *Tx) Connections() ([]execution.Connection, error) {
	return list(tx, scanConnection, connections, tx.managing())
}

// RenewConnections extends the replica's rows and returns the runners of those
// that were taken over; they are left alone, and whoever still serves them here is
// woken.
func (tx *Tx) RenewConnections(r protocol.ReplicaID, runners []protocol.RunnerID, until time.Time) (lost []protocol.RunnerID, err error) {
	if err := tx.internal("renewing connections"); err != nil {
		return nil, err
	}
	for _, id := range runners {
		n, err := tx.exec(renewConnection, id, r, until)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			lost = append(lost, id)
			tx.touch(MailOf(id))
		}
	}
	tx.touch(TopicAttempts)
	return lost, nil
}

// ReleaseConnection expires the row now, if the epoch is still current.
func (tx *Tx) ReleaseConnection(r protocol.RunnerID, epoch int64) error {
	if _, err := tx.attended(r); err != nil {
		return err
	}
	_, err := tx.exec(releaseConnection, r, epoch, tx.Now)
	tx.touch(TopicAttempts)
	return err
}

var (
	nextMailSeq = define(`UPDATE runners SET mailbox_seq = mailbox_seq + 1 WHERE id = $1 RETURNING mailbox_seq`)
	insertMail  = define(`INSERT INTO mailbox (runner, seq, attempt, body, created_at) VALUES ($1, $2, $3, $4, $5)`)
	mailAfter   = define(`SELECT m.runner, m.seq, m.attempt, m.body, m.created_at FROM mailbox m
		WHERE m.runner = $1 AND m.seq > $2 ORDER BY m.seq LIMIT $3`)
	deleteMail = define(`DELETE FROM mailbox WHERE runner = $1 AND seq <= $2`)
	ackMail    = define(`UPDATE runners SET acked_seq = $2 WHERE id = $1 AND acked_seq < $2 AND mailbox_seq >= $2`)
)

// PutMail appends a command to the runner's mailbox and returns its sequence. A
// principal may command only what is its own: an attempt of its on that runner.
func (tx *Tx) PutMail(m execution.MailboxItem) (int64, error) {
	if !tx.caller.Internal() {
		a, err := tx.Attempt(m.Attempt)
		if err != nil || a.Principal != tx.caller.principal || a.Runner != m.Runner {
			return 0, absent("runner", m.Runner)
		}
	}
	seq, err := returning(tx, number, nextMailSeq, []any{m.Runner})
	if errors.Is(err, errNoRow) {
		return 0, absent("runner", m.Runner)
	} else if err != nil {
		return 0, err
	}
	if m.CreatedAt.IsZero() {
		m.CreatedAt = tx.Now
	}
	_, err = tx.exec(insertMail, m.Runner, seq, m.Attempt, m.Body, m.CreatedAt)
	tx.touch(TopicMail)
	tx.touch(MailOf(m.Runner))
	return seq, err
}

// Mail of a runner after a sequence, in order; only the runner reads it.
func (tx *Tx) Mail(r protocol.RunnerID, after int64, limit int) ([]execution.MailboxItem, error) {
	if _, err := tx.attended(r); err != nil {
		return nil, err
	}
	return list(tx, func(r scanner) (m execution.MailboxItem, err error) {
		err = r.Scan(&m.Runner, &m.Seq, &m.Attempt, blob(&m.Body), at(&m.CreatedAt))
		return m, err
	}, mailAfter, []any{r, after, limited(limit)})
}

// AckMail deletes everything up to seq.
func (tx *Tx) AckMail(r protocol.RunnerID, seq int64) error {
	if _, err := tx.attended(r); err != nil {
		return err
	}
	if _, err := tx.exec(deleteMail, r, seq); err != nil {
		return err
	}
	_, err := tx.exec(ackMail, r, seq)
	return err
}

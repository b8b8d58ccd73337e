package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

const sliceColumns = `l.id, l.tenant, l.turn, l.broker_boot, l.ceiling, l.drawn,
	l.input_tokens, l.output_tokens, l.model_calls, l.closed_at`

func scanSlice(r scanner) (s policy.Slice, err error) {
	err = r.Scan(&s.ID, &s.Tenant, &s.Turn, &s.BrokerBoot, &s.CeilingMicroUSD, &s.DrawnMicroUSD,
		&s.InputTokens, &s.OutputTokens, &s.ModelCalls, at(&s.ClosedAt))
	return s, err
}

var (
	insertSlice = define(`INSERT INTO slices (id, tenant, turn, broker_boot, ceiling, drawn, closed_at, input_tokens, output_tokens, model_calls)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING`)
	sliceByID    = define(`SELECT ` + sliceColumns + ` FROM slices l JOIN turns t ON t.id = l.turn WHERE ` + own("t") + ` AND l.id = $3`)
	slicesOfTurn = define(`SELECT ` + sliceColumns + ` FROM slices l JOIN turns t ON t.id = l.turn WHERE ` + own("t") + `
		AND l.turn = $3 ORDER BY l.id`)
	saveSlice = define(`UPDATE slices SET ceiling = $2, drawn = $3, closed_at = $4, input_tokens = $5, output_tokens = $6, model_calls = $7
		WHERE id = $1 AND closed_at = 0 AND ceiling <= $2 AND drawn <= $3 AND input_tokens <= $5 AND output_tokens <= $6 AND model_calls <= $7`)
)

// InsertSlice reserves a part of the budget of a turn.
func (tx *Tx) InsertSlice(s policy.Slice) error {
	t, err := tx.Turn(s.Turn)
	if err != nil {
		return err
	}
	n, err := tx.exec(insertSlice, s.ID, t.Tenant, s.Turn, s.BrokerBoot, s.CeilingMicroUSD, s.DrawnMicroUSD, s.ClosedAt,
		s.InputTokens, s.OutputTokens, s.ModelCalls)
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeAlreadyExists, "budget slice %s exists already", s.ID)
	}
	return err
}

func (tx *Tx) Slice(id protocol.SliceID) (policy.Slice, error) {
	return one(tx, "budget slice", id, scanSlice, sliceByID, tx.mine(id))
}

// SaveSlice writes ceiling, draw, usage and end; none of them ever falls, and a
// closed slice never changes. INV-19.
func (tx *Tx) SaveSlice(s policy.Slice) error {
	now, err := tx.Slice(s.ID)
	if err != nil {
		return err
	}
	n, err := tx.exec(saveSlice, s.ID, s.CeilingMicroUSD, s.DrawnMicroUSD, s.ClosedAt,
		s.InputTokens, s.OutputTokens, s.ModelCalls)
	if err != nil {
		return err
	}
	if n == 1 {
		return tx.addUsage(now.Turn, 0, s.DrawnMicroUSD-now.DrawnMicroUSD)
	}
	if now == s {
		return nil // the same end again
	}
	return protocol.Errorf(protocol.CodeConflict, "budget slice %s is closed, or would fall from ceiling %d, draw %d", s.ID, now.CeilingMicroUSD, now.DrawnMicroUSD)
}

// SlicesOfTurn are all slices that were reserved for a turn.
func (tx *Tx) SlicesOfTurn(t protocol.TurnID) ([]policy.Slice, error) {
	return list(tx, scanSlice, slicesOfTurn, tx.mine(t))
}

package store

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

var (
	addUsage = define(`INSERT INTO usage_days (tenant, day, principal, agent, part, tokens, cost)
		SELECT t.tenant, $2, t.principal, s.agent, $3, $4, $5 FROM turns t JOIN sessions s ON s.id = t.session WHERE t.id = $1
		ON CONFLICT (tenant, day, principal, agent, part)
		DO UPDATE SET tokens = usage_days.tokens + excluded.tokens, cost = usage_days.cost + excluded.cost`)
	dropUsage = define(`DELETE FROM usage_days WHERE day < $1`)
	consumed  = define(`SELECT
		(SELECT COUNT(*) FROM turns t WHERE ` + inScope + ` AND t.state IN ` + activeStates + `),
		(SELECT COUNT(*) FROM turns t WHERE ` + inScope + ` AND t.state = 'QUEUED'),
		(SELECT COUNT(*) FROM principals p JOIN turns t ON t.principal = p.id WHERE p.tenant = $1 AND t.queued_at > $4 AND ` + inScope + `),
		(SELECT COALESCE(MIN(t.queued_at), 0) FROM principals p JOIN turns t ON t.principal = p.id WHERE p.tenant = $1 AND t.queued_at > $4 AND ` + inScope + `),
		(SELECT CAST(COALESCE(SUM(u.tokens), 0) AS BIGINT) FROM usage_days u WHERE u.tenant = $1 AND u.day = $5 AND ($2 = '' OR u.principal = $2) AND ($3 = '' OR u.agent = $3)),
		(SELECT CAST(COALESCE(SUM(u.cost), 0) AS BIGINT) FROM usage_days u WHERE u.tenant = $1 AND u.day = $5 AND ($2 = '' OR u.principal = $2) AND ($3 = '' OR u.agent = $3))`)
)

const inScope = `t.tenant = $1 AND ($2 = '' OR t.principal = $2)
	AND ($3 = '' OR EXISTS (SELECT 1 FROM sessions sx WHERE sx.id = t.session AND sx.agent = $3))`

// AddUsage counts tokens of a turn under the day. What brokers drew is counted by
// SaveSlice, so that nobody's word but theirs makes a cost.
func (tx *Tx) AddUsage(id protocol.TurnID, tokens int64) error { return tx.addUsage(id, tokens, 0) }

func (tx *Tx) addUsage(id protocol.TurnID, tokens, cost int64) error {
	t, err := tx.Turn(id)
	if err != nil || tokens <= 0 && cost <= 0 {
		return err
	}
	session := t.Session.String()
	_, err = tx.exec(addUsage, t.ID, policy.Day(tx.Now), session[len(session)-1:], max(0, tokens), max(0, cost))
	return err
}

// DropUsage forgets the days before an instant.
func (tx *Tx) DropUsage(before time.Time) (int64, error) {
	if err := tx.internal("sweeping"); err != nil {
		return 0, err
	}
	return tx.exec(dropUsage, policy.Day(before))
}

// Consumption of a scope now. A principal may count its own and, as one number,
// its tenant's and an agent's: those are bounds that it runs into.
func (tx *Tx) Consumption(s policy.Scope) (c policy.Consumption, err error) {
	if k := tx.caller; !k.Internal() &&
		(k.kind != callerPrincipal || s.Tenant != k.tenant || !s.Principal.IsZero() && s.Principal != k.principal) {
		return c, nil
	}
	return first(tx, func(r scanner) (c policy.Consumption, err error) {
		err = r.Scan(&c.Active, &c.Queued, &c.LastMinute, at(&c.Oldest), &c.TokensToday, &c.CostTodayMicroUSD)
		return c, err
	}, consumed, []any{s.Tenant, s.Principal, s.Agent, tx.Now.Add(-time.Minute), policy.Day(tx.Now)})
}

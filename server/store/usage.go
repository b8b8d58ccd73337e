package store

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
)

var (
	addUsage = define(`INSERT INTO usage_days (tenant, day, principal, agent, part, tokens, cost)
		SELECT t.tenant, $2, t.principal, s.agent, $3, $4, $5 FROM turns t JOIN sessions s ON s.id = t.session WHERE t.id = $1
		ON CONFLICT (tenant, day, principal, agent, part)
		DO UPDATE SET tokens = usage_days.tokens + excluded.tokens, cost = usage_days.cost + excluded.cost`)
	// Of a turn that runs on a machine, or ran there last.
	addRunnerUsage = define(`INSERT INTO runner_days (tenant, day, runner, tokens, cost)
		SELECT t.tenant, $2, a.runner, $3, $4 FROM turns t JOIN attempts a ON a.id = t.attempt WHERE t.id = $1 AND a.runner <> ''
		ON CONFLICT (tenant, day, runner)
		DO UPDATE SET tokens = runner_days.tokens + excluded.tokens, cost = runner_days.cost + excluded.cost`)
	dropUsage       = define(`DELETE FROM usage_days WHERE day < $1`)
	dropRunnerUsage = define(`DELETE FROM runner_days WHERE day < $1`)
	usedByRunner    = define(`SELECT
		(SELECT CAST(COALESCE(SUM(CASE WHEN a.subject_kind = $4 THEN 1 ELSE 0 END), 0) AS BIGINT) FROM attempts a WHERE ` + onRunner + `),
		(SELECT CAST(COALESCE(SUM(CASE WHEN a.subject_kind = $4 THEN 0 ELSE 1 END), 0) AS BIGINT) FROM attempts a WHERE ` + onRunner + `),
		(SELECT CAST(COALESCE(SUM(u.tokens), 0) AS BIGINT) FROM runner_days u WHERE u.tenant = $2 AND u.day = $3 AND u.runner = $1),
		(SELECT CAST(COALESCE(SUM(u.cost), 0) AS BIGINT) FROM runner_days u WHERE u.tenant = $2 AND u.day = $3 AND u.runner = $1)`)
	consumed = define(`SELECT
		(SELECT COUNT(*) FROM turns t WHERE ` + inScope + ` AND t.state IN ` + activeStates + `),
		(SELECT ` + waiting + ` FROM sessions s WHERE s.tenant = $1 AND ($2 = '' OR s.principal = $2) AND ($3 = '' OR s.agent = $3) AND s.queued > 0),
		(SELECT COUNT(*) FROM principals p JOIN turns t ON t.principal = p.id WHERE p.tenant = $1 AND t.queued_at > $4 AND ` + inScope + `),
		(SELECT COALESCE(MIN(t.queued_at), 0) FROM principals p JOIN turns t ON t.principal = p.id WHERE p.tenant = $1 AND t.queued_at > $4 AND ` + inScope + `),
		(SELECT CAST(COALESCE(SUM(u.tokens), 0) AS BIGINT) FROM usage_days u WHERE u.tenant = $1 AND u.day = $5 AND ($2 = '' OR u.principal = $2) AND ($3 = '' OR u.agent = $3)),
		(SELECT CAST(COALESCE(SUM(u.cost), 0) AS BIGINT) FROM usage_days u WHERE u.tenant = $1 AND u.day = $5 AND ($2 = '' OR u.principal = $2) AND ($3 = '' OR u.agent = $3))`)
)

// onRunner are the attempts that take a place on a machine.
const onRunner = `a.runner = $1 AND a.state IN ` + heldStates + ` AND a.state <> 'QUEUED'`

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
	if _, err = tx.exec(addUsage, t.ID, policy.Day(tx.Now), session[len(session)-1:], max(0, tokens), max(0, cost)); err != nil || t.Attempt.IsZero() {
		return err
	}
	_, err = tx.exec(addRunnerUsage, t.ID, policy.Day(tx.Now), max(0, tokens), max(0, cost))
	return err
}

// DropUsage forgets the days before an instant.
func (tx *Tx) DropUsage(before time.Time) (int64, error) {
	if err := tx.internal("sweeping"); err != nil {
		return 0, err
	}
	n, err := tx.exec(dropUsage, policy.Day(before))
	if err != nil {
		return n, err
	}
	m, err := tx.exec(dropRunnerUsage, policy.Day(before))
	return n + m, err
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

// RunnerConsumption is what a machine uses now. Who may see the machine may count it:
// it is a bound that their turns run into.
func (tx *Tx) RunnerConsumption(id protocol.RunnerID) (c policy.Consumption, err error) {
	r, err := tx.Runner(id)
	if err != nil {
		return c, err
	}
	return first(tx, func(s scanner) (c policy.Consumption, err error) {
		err = s.Scan(&c.Active, &c.ActiveActions, &c.TokensToday, &c.CostTodayMicroUSD)
		return c, err
	}, usedByRunner, []any{r.ID, r.Tenant, policy.Day(tx.Now), execution.SubjectTurn})
}

package store

import "time"

// Gauges are how much of everything waits now, over all tenants.
type Gauges struct {
	Queued, Active, Attempts, Approvals, Unknown, Cleanups int64
	// Oldest of what is queued, and of what is not cleaned up; zero: nothing is.
	OldestQueued, OldestCleanup time.Time
	// Connections that are held, by transport.
	Connections map[string]int64
}

// gaugeRow is one row of all numbers; every count runs over an index of what has
// not ended, whose condition some of them repeat.
var gaugeRow = define(`SELECT
	(SELECT COUNT(*) FROM turns t WHERE t.state = 'QUEUED'),
	(SELECT COALESCE(MIN(t.queued_at), 0) FROM turns t WHERE t.state = 'QUEUED'),
	(SELECT COUNT(*) FROM turns t WHERE t.state IN ` + activeStates + `),
	(SELECT COUNT(*) FROM attempts a WHERE a.state IN ('QUEUED', 'OFFERED', 'CLAIMED', 'RUNNING', 'SUSPECT') AND a.state IN ('QUEUED', 'OFFERED')),
	(SELECT COUNT(*) FROM approvals p WHERE p.state = 'PENDING' AND p.state IN ('PENDING', 'APPROVED')),
	(SELECT COUNT(*) FROM actions a WHERE a.state = 'UNKNOWN' AND a.resolution = ''),
	(SELECT COUNT(*) FROM cleanups c WHERE c.done_at = 0),
	(SELECT COALESCE(MIN(c.created_at), 0) FROM cleanups c WHERE c.done_at = 0)`)

var gaugeConnections = define(`SELECT c.transport, COUNT(*) FROM connections c WHERE c.expires_at > $1 GROUP BY c.transport`)

// Gauges reads them. Internal callers only: they count what is everybody's.
func (tx *Tx) Gauges() (Gauges, error) {
	if err := tx.internal("counting"); err != nil {
		return Gauges{}, err
	}
	g, err := first(tx, func(r scanner) (g Gauges, err error) {
		err = r.Scan(&g.Queued, at(&g.OldestQueued), &g.Active, &g.Attempts, &g.Approvals, &g.Unknown, &g.Cleanups, at(&g.OldestCleanup))
		return g, err
	}, gaugeRow, nil)
	if err != nil {
		return g, err
	}
	type transport struct {
		name string
		n    int64
	}
	all, err := list(tx, func(r scanner) (t transport, err error) {
		err = r.Scan(&t.name, &t.n)
		return t, err
	}, gaugeConnections, []any{tx.Now})
	g.Connections = map[string]int64{}
	for _, t := range all {
		g.Connections[t.name] = t.n
	}
	return g, err
}

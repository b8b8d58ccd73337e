package policy

import (
	"fmt"
	"time"

	"bivouac/edge/protocol"
)

// Scopes of a quota: everybody of a tenant together, one principal, one agent of a
// tenant for all who use it, and one machine for all who work there.
const (
	ScopeTenant    = "tenant"
	ScopePrincipal = "principal"
	ScopeAgent     = "agent"
	ScopeRunner    = "runner"
)

// Quota bounds what one subject uses, over all sessions and restarts. A zero field
// bounds nothing. A day is one of UTC.
type Quota struct {
	MaxActiveTurns        int
	MaxQueuedTurns        int
	MaxTurnsPerMinute     int
	MaxTokensPerDay       int64
	MaxCostPerDayMicroUSD int64
	// MaxActiveActions are device actions at once, of a machine alone.
	MaxActiveActions int
}

// Bounds reports a quota that says anything.
func (q Quota) Bounds() bool { return q != Quota{} }

// Daily reports a quota on what is spent.
func (q Quota) Daily() bool { return q.MaxTokensPerDay > 0 || q.MaxCostPerDayMicroUSD > 0 }

// Quotas of a server: what everyone of a scope has, and what is said of some by
// name, which stands instead.
type Quotas struct {
	Default map[string]Quota            // by scope
	Named   map[string]map[string]Quota // by scope and name: "acme", "acme/ada"
}

// Of is the quota of a subject by its name: a tenant's own, or "tenant/name".
func (q Quotas) Of(scope, name string) Quota {
	if named, ok := q.Named[scope][name]; ok {
		return named
	}
	return q.Default[scope]
}

// HoldActivation reports that something in it may hold a turn back that was admitted.
func (q Quotas) HoldActivation() bool {
	holds := func(q Quota) bool { return q.MaxActiveTurns > 0 || q.Daily() }
	for scope, one := range q.Default {
		if scope != ScopeRunner && holds(one) {
			return true
		}
	}
	for scope, names := range q.Named {
		for _, one := range names {
			if scope != ScopeRunner && holds(one) {
				return true
			}
		}
	}
	return false
}

// Any reports that a quota is declared.
func (q Quotas) Any() bool { return len(q.Default)+len(q.Named) > 0 }

// Scope is whose use is counted: a tenant's, narrowed to a principal's, or to an
// agent's.
type Scope struct {
	Tenant    protocol.TenantID
	Principal protocol.PrincipalID
	Agent     string
}

// Consumption is what a scope uses at an instant.
type Consumption struct {
	Active, Queued int
	// ActiveActions are device actions of a machine.
	ActiveActions int
	// LastMinute counts the turns that were queued within the minute before, of which
	// Oldest is the first.
	LastMinute int
	Oldest     time.Time
	// TokensToday and CostToday are of the day of UTC.
	TokensToday       int64
	CostTodayMicroUSD int64
}

// Day numbers the days of UTC; a day's use is kept under it.
func Day(at time.Time) int64 { return at.Unix() / int64(day/time.Second) }

// nextDay is when the count of a day begins anew.
func nextDay(at time.Time) time.Time { return at.UTC().Truncate(day).Add(day) }

// Refusal says what of a quota is used up, and when that may be otherwise.
type Refusal struct {
	Code       protocol.Code
	Text       string
	RetryAfter time.Duration
}

// Admits says why one more prompt is not taken; nil when it is. A queue that is
// full has no time of its own.
func (q Quota) Admits(c Consumption, now time.Time) *Refusal {
	switch {
	case q.MaxQueuedTurns > 0 && c.Queued >= q.MaxQueuedTurns:
		return &Refusal{Code: protocol.CodeQueueFull, Text: fmt.Sprintf("%d turns wait, at most %d may", c.Queued, q.MaxQueuedTurns)}
	case q.MaxTurnsPerMinute > 0 && c.LastMinute >= q.MaxTurnsPerMinute:
		return &Refusal{Code: protocol.CodeRateLimited, Text: fmt.Sprintf("%d turns were sent within a minute, at most %d may be", c.LastMinute, q.MaxTurnsPerMinute),
			RetryAfter: max(time.Second, c.Oldest.Add(time.Minute).Sub(now))}
	}
	return q.Spent(c, now)
}

// Activates says why a turn that waits does not begin yet; nil when it may.
func (q Quota) Activates(c Consumption, now time.Time) *Refusal {
	if q.MaxActiveTurns > 0 && c.Active >= q.MaxActiveTurns {
		return &Refusal{Code: protocol.CodeRateLimited, Text: fmt.Sprintf("%d turns are active, at most %d may be", c.Active, q.MaxActiveTurns)}
	}
	return q.Spent(c, now)
}

// Spent says that the day is used up, and until when; nil when it is not.
func (q Quota) Spent(c Consumption, now time.Time) *Refusal {
	text := ""
	switch {
	case q.MaxTokensPerDay > 0 && c.TokensToday >= q.MaxTokensPerDay:
		text = fmt.Sprintf("%d tokens were used today, at most %d may be", c.TokensToday, q.MaxTokensPerDay)
	case q.MaxCostPerDayMicroUSD > 0 && c.CostTodayMicroUSD >= q.MaxCostPerDayMicroUSD:
		text = fmt.Sprintf("%.6f USD were spent today, at most %.6f may be", float64(c.CostTodayMicroUSD)/1e6, float64(q.MaxCostPerDayMicroUSD)/1e6)
	default:
		return nil
	}
	next := nextDay(now)
	return &Refusal{Code: protocol.CodeBudgetExhausted, Text: text + "; a new day begins at " + next.Format(time.RFC3339), RetryAfter: next.Sub(now)}
}

// Narrower is the lower bound of two, field by field. INV-10.
func (q Quota) Narrower(o Quota) Quota {
	return Quota{
		MaxActiveTurns: lower(q.MaxActiveTurns, o.MaxActiveTurns), MaxQueuedTurns: lower(q.MaxQueuedTurns, o.MaxQueuedTurns),
		MaxTurnsPerMinute: lower(q.MaxTurnsPerMinute, o.MaxTurnsPerMinute), MaxActiveActions: lower(q.MaxActiveActions, o.MaxActiveActions),
		MaxTokensPerDay: lower(q.MaxTokensPerDay, o.MaxTokensPerDay), MaxCostPerDayMicroUSD: lower(q.MaxCostPerDayMicroUSD, o.MaxCostPerDayMicroUSD),
	}
}

// Narrow bounds a turn by what is left of the day. INV-10.
func (q Quota) Narrow(l *Limits, c Consumption) {
	if q.MaxTokensPerDay > 0 {
		l.MaxTokens = min(l.MaxTokens, max(0, q.MaxTokensPerDay-c.TokensToday))
	}
	if q.MaxCostPerDayMicroUSD > 0 {
		l.MaxCostMicroUSD = min(l.MaxCostMicroUSD, max(0, q.MaxCostPerDayMicroUSD-c.CostTodayMicroUSD))
	}
}

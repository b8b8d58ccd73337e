package server

import (
	"fmt"
	"slices"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

// quotaFile bounds what everyone of a scope uses, or the one that is named, for
// whom it stands instead.
//
//	quota "tenant" {
//	  max_active_turns     = 20
//	  max_queued_turns     = 200
//	  max_cost_per_day_usd = 25
//	}
//	quota "principal" {
//	  name               = "acme/ada"
//	  max_tokens_per_day = 2000000
//	}
//	quota "agent" { max_turns_per_minute = 60 }
//	quota "runner" {
//	  name               = "acme/laptop"
//	  max_active_actions = 4
//	}
type quotaFile struct {
	// Scope is "tenant", "principal", "agent" or "runner".
	Scope string `hcl:"scope,label"`
	// Name of a tenant, or "tenant/name"; absent: everyone of the scope.
	Name              *string  `hcl:"name"`
	MaxActiveTurns    *int     `hcl:"max_active_turns"`
	MaxQueuedTurns    *int     `hcl:"max_queued_turns"`
	MaxTurnsPerMinute *int     `hcl:"max_turns_per_minute"`
	MaxTokensPerDay   *int64   `hcl:"max_tokens_per_day"`
	MaxCostPerDayUSD  *float64 `hcl:"max_cost_per_day_usd"`
	// MaxActiveActions at once: of a runner alone, which has no queue of its own.
	MaxActiveActions *int `hcl:"max_active_actions"`
}

// quotasOver lays the quotas of a file over those that are there.
func quotasOver(q policy.Quotas, blocks []*quotaFile) (policy.Quotas, error) {
	seen := map[string]bool{}
	for _, b := range blocks {
		one, name, err := b.quota()
		if err != nil {
			return q, err
		}
		if seen[b.Scope+" "+name] {
			return q, badQuota(b.Scope, name, "it is there twice: one block says all of it")
		}
		seen[b.Scope+" "+name] = true
		if q.Default == nil {
			q.Default, q.Named = map[string]policy.Quota{}, map[string]map[string]policy.Quota{}
		}
		if name == "" {
			q.Default[b.Scope] = one
			continue
		}
		if q.Named[b.Scope] == nil {
			q.Named[b.Scope] = map[string]policy.Quota{}
		}
		q.Named[b.Scope][name] = one
	}
	return q, nil
}

func badQuota(scope, name, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidArgument, "quota %q %s: %s", scope, name, fmt.Sprintf(format, args...))
}

func (b *quotaFile) quota() (q policy.Quota, name string, err error) {
	set(&name, b.Name)
	switch slashes := strings.Count(name, "/"); {
	case !slices.Contains([]string{policy.ScopeTenant, policy.ScopePrincipal, policy.ScopeAgent, policy.ScopeRunner}, b.Scope):
		return q, name, badQuota(b.Scope, name, `it must be of a "tenant", a "principal", an "agent" or a "runner"`)
	case b.Scope == policy.ScopeRunner && (b.MaxQueuedTurns != nil || b.MaxTurnsPerMinute != nil):
		return q, name, badQuota(b.Scope, name, "a runner has no queue: max_queued_turns and max_turns_per_minute are of tenants, principals and agents")
	case b.Scope != policy.ScopeRunner && b.MaxActiveActions != nil:
		return q, name, badQuota(b.Scope, name, "max_active_actions is of runners alone")
	case b.Name != nil && (name == "" || b.Scope == policy.ScopeTenant && slashes != 0 || b.Scope != policy.ScopeTenant && slashes != 1):
		return q, name, badQuota(b.Scope, name, `name is a tenant's, such as "acme", or "acme/ada" for a principal, an agent or a runner in it`)
	}
	cost := int64(0)
	if b.MaxCostPerDayUSD != nil {
		if cost = int64(*b.MaxCostPerDayUSD*1e6 + 0.5); cost < 1 || *b.MaxCostPerDayUSD > 1e9 {
			return q, name, badQuota(b.Scope, name, "max_cost_per_day_usd must be more than 0.000001 and at most 1e9; leave it out for no bound")
		}
	}
	set(&q.MaxActiveTurns, b.MaxActiveTurns)
	set(&q.MaxQueuedTurns, b.MaxQueuedTurns)
	set(&q.MaxTurnsPerMinute, b.MaxTurnsPerMinute)
	set(&q.MaxTokensPerDay, b.MaxTokensPerDay)
	set(&q.MaxActiveActions, b.MaxActiveActions)
	q.MaxCostPerDayMicroUSD = cost
	for _, field := range []struct {
		name  string
		given bool
		value int64
	}{
		{"max_active_turns", b.MaxActiveTurns != nil, int64(q.MaxActiveTurns)},
		{"max_queued_turns", b.MaxQueuedTurns != nil, int64(q.MaxQueuedTurns)},
		{"max_turns_per_minute", b.MaxTurnsPerMinute != nil, int64(q.MaxTurnsPerMinute)},
		{"max_active_actions", b.MaxActiveActions != nil, int64(q.MaxActiveActions)},
		{"max_tokens_per_day", b.MaxTokensPerDay != nil, q.MaxTokensPerDay},
	} {
		if field.given && field.value < 1 {
			return q, name, badQuota(b.Scope, name, "%s must be at least 1; leave it out for no bound", field.name)
		}
	}
	if b.Name == nil && !q.Bounds() {
		return q, name, badQuota(b.Scope, name, "it bounds nothing: give a limit, or leave it out")
	}
	return q, name, nil
}

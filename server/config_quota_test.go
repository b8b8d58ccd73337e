package server

import (
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

func TestFileQuotas(t *testing.T) {
	c, err := LoadFile(Default(), write(t, `
quota "tenant" {
  max_active_turns     = 20
  max_queued_turns     = 200
  max_cost_per_day_usd = 2.5
}
quota "principal" { max_turns_per_minute = 30 }
quota "principal" {
  name               = "acme/ada"
  max_tokens_per_day = 1000
}
quota "principal" { name = "acme/batch" }
quota "runner" { max_active_actions = 4 }
quota "runner" {
  name             = "acme/laptop"
  max_active_turns = 1
}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		scope, name string
		quota       policy.Quota
	}{
		{"tenant", "acme", policy.Quota{MaxActiveTurns: 20, MaxQueuedTurns: 200, MaxCostPerDayMicroUSD: 2_500_000}},
		{"principal", "acme/bob", policy.Quota{MaxTurnsPerMinute: 30}},
		{"principal", "acme/ada", policy.Quota{MaxTokensPerDay: 1000}}, // its own stands instead
		{"principal", "acme/batch", policy.Quota{}},                    // named, and not bounded
		{"agent", "acme/assistant", policy.Quota{}},
		{"runner", "acme/desktop", policy.Quota{MaxActiveActions: 4}},
		{"runner", "acme/laptop", policy.Quota{MaxActiveTurns: 1}},
	} {
		if got := c.Quotas.Of(want.scope, want.name); got != want.quota {
			t.Errorf("%s %s has %+v, want %+v", want.scope, want.name, got, want.quota)
		}
	}
}

func TestFileQuotasAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		`quota "room" { max_active_turns = 1 }`:                                              `"tenant"`,
		`quota "tenant" { max_active_turns = 0 }`:                                            "max_active_turns must be at least 1",
		`quota "tenant" { max_cost_per_day_usd = -1 }`:                                       "max_cost_per_day_usd",
		`quota "runner" { max_queued_turns = 1 }`:                                            "a runner has no queue",
		`quota "agent" { max_active_actions = 1 }`:                                           "is of runners alone",
		`quota "runner" { max_active_actions = 0 }`:                                          "max_active_actions must be at least 1",
		`quota "tenant" {}`:                                                                  "bounds nothing",
		"quota \"principal\" {\n  name = \"ada\"\n  max_active_turns = 1\n}":                 "acme/ada",
		"quota \"agent\" { max_active_turns = 1 }\nquota \"agent\" { max_active_turns = 2 }": "there twice",
		`quota "tenant" { max_active_turn = 1 }`:                                             "server.hcl:1",
	} {
		_, err := LoadFile(Default(), write(t, text))
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

package loop

import (
	"testing"

	"bivouac/edge/runtime/runtimev1"
)

// INV-19: limits count on from what the turn is known to have used, by an earlier
// attempt or in answers that never came; what is left of them may be used.
func TestLimitsCountWhatWasSettled(t *testing.T) {
	limits := &runtimev1.Limits{MaxModelCalls: 5, MaxToolCalls: 5, MaxCorrections: 2, MaxTokens: 100, MaxCostMicroUsd: 100, MaxWallMs: 1000, MaxResultBytes: 100}
	for name, c := range map[string]struct {
		settled *runtimev1.Settled
		limit   string
	}{
		"nothing":          {nil, ""},
		"less":             {&runtimev1.Settled{ModelCalls: 4, Usage: &runtimev1.Usage{InputTokens: 90, OutputTokens: 9, CostMicroUsd: 99}}, ""},
		"all tokens":       {&runtimev1.Settled{Usage: &runtimev1.Usage{InputTokens: 90, OutputTokens: 10}}, LimitTokens},
		"all of the money": {&runtimev1.Settled{Usage: &runtimev1.Usage{CostMicroUsd: 100}}, LimitCost},
		"all model calls":  {&runtimev1.Settled{ModelCalls: 5}, LimitModelCalls},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &runtimev1.Spec{Model: "m", Limits: limits, Settled: c.settled,
				Messages: []*runtimev1.Message{textMessage(runtimev1.Role_ROLE_USER, "go")}}
			begins := New(spec) // a new attempt
			spec.Settled = nil
			here := New(spec) // a loop that is told while it runs
			here.Settled = c.settled
			for _, s := range []*runtimev1.LoopState{begins, here} {
				after, commands := Step(s, Begin{})
				if _, calls := commands[0].(CallModel); calls != (c.limit == "") {
					t.Errorf("%v", commands)
				}
				if c.limit == "" {
					continue
				}
				if got := after.Outcome; got.GetReason() != c.limit || got.GetUsage().GetCostMicroUsd() != c.settled.GetUsage().GetCostMicroUsd() {
					t.Errorf("it ended with %v", got)
				}
			}
		})
	}
}

// A resumed attempt takes the greater of its checkpoint and what was settled.
func TestResumeCountsTheGreater(t *testing.T) {
	spec := &runtimev1.Spec{
		Resume:  &runtimev1.LoopState{ModelCalls: 2, Usage: &runtimev1.Usage{InputTokens: 50, OutputTokens: 1, CostMicroUsd: 5}},
		Settled: &runtimev1.Settled{ModelCalls: 3, Usage: &runtimev1.Usage{InputTokens: 40, OutputTokens: 2, CostMicroUsd: 6}},
	}
	s := New(spec)
	if u := s.Usage; s.ModelCalls != 3 || u.InputTokens != 50 || u.OutputTokens != 2 || u.CostMicroUsd != 6 {
		t.Errorf("%d calls, %v", s.ModelCalls, u)
	}
	if spec.Resume.ModelCalls != 2 || spec.Settled.Usage.InputTokens != 40 {
		t.Error("its spec was changed")
	}
}

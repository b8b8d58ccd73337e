package engine_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/policy"
)

// crowd is how many turns of ten tenants are queued at once: one has more than half of
// them, and came first. A thousand take minutes, since each step of a world looks at all.
var crowd = flag.Int("crowd", 40, "turns that TestCrowd queues at once")

// crowdWork is how long each turn takes, crowdStep how often somebody looks.
const crowdTenants, crowdWork, crowdStep = 10, 10 * time.Second, time.Second

type crowdTenant struct {
	person policy.Principal
	runner *et.Runner
	turns  int
	// begun are when its turns began, in order, after all were queued.
	begun []time.Duration
}

// Turns that ask for allocations of their own are queued here and not at
// another scheduler, which never has more than the cap. Nobody waits more than twice the
// time that an equal share of the cap would take, however many another has queued before.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := et.NewNomad(1000)
		n.Max = max(crowdTenants, *crowd/20)
		w := et.New(t, et.WithNomad(n), et.WithLimits(engine.Limits{MaxQueuedPrincipal: 1000}))
		agent := strings.Replace(et.CoderOwn, "  lease {", "  limits {\n    place_within = \"24h\"\n  }\n  lease {", 1)
		var tenants []*crowdTenant
		for i := range crowdTenants {
			x := &crowdTenant{turns: *crowd / 20}
			if i == 0 {
				x.turns = *crowd - (crowdTenants-1)**crowd/20
			}
			_, x.person = w.Principal(fmt.Sprint("tenant-", i), "ada", true)
			if _, err := w.Engine.ApplyAgent(ctx(), et.Caller(x.person), engine.AgentSource{Filename: "agent.hcl", Source: []byte(agent)}); err != nil {
				t.Fatal(err)
			}
			x.runner = w.JoinHosted(x.person, fmt.Sprint("node-", i))
			x.runner.Facts.Slots = int32(n.Max)
			x.runner.Connect()
			tenants = append(tenants, x)
		}
		for _, x := range tenants {
			for m := range x.turns {
				s, err := w.Engine.CreateSession(ctx(), et.Caller(x.person), engine.NewSession{Agent: "coder"})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := w.Engine.SubmitTurn(ctx(), et.Caller(x.person), engine.NewTurn{Session: s.ID, MessageID: fmt.Sprint(m), Prompt: "work"}); err != nil {
					t.Fatal(err)
				}
			}
		}
		work(t, w, tenants)
		judgeCrowd(t, n, tenants)
	})
}

// work lets every turn take its time, until all have ended.
func work(t *testing.T, w *et.World, tenants []*crowdTenant) {
	t.Helper()
	begun, since := map[protocol.AttemptID]time.Time{}, time.Now()
	left := *crowd
	for left > 0 {
		if time.Since(since) > 2*time.Hour {
			t.Fatalf("%d turns have not ended", left)
		}
		w.Settle()
		for _, x := range tenants {
			for _, h := range x.runner.Turns() {
				at, known := begun[h.ID]
				switch {
				case !known:
					begun[h.ID] = time.Now()
					x.begun = append(x.begun, time.Since(since))
					h.Begin()
				case time.Since(at) >= crowdWork && h.Journal[len(h.Journal)-1].GetResult() == nil:
					h.Finish("done", "")
					left--
				}
			}
		}
		time.Sleep(crowdStep)
	}
}

func judgeCrowd(t *testing.T, n *et.Nomad, tenants []*crowdTenant) {
	t.Helper()
	if n.Peak > n.Max || n.Peak < n.Max*9/10 {
		t.Errorf("Nomad had %d jobs at once, and %d may be", n.Peak, n.Max)
	}
	for id, asked := range n.Asked {
		if asked != 1 {
			t.Errorf("job %s was asked for %d times", id, asked)
		}
	}
	share := n.Max / crowdTenants
	for i, x := range tenants {
		if len(x.begun) != x.turns {
			t.Errorf("tenant %d: %d of %d turns began", i, len(x.begun), x.turns)
		}
		worst := 0.0
		for k, at := range x.begun {
			fair := time.Duration(k/share+1) * crowdWork // when the share is free again for the kth
			worst = max(worst, float64(at)/float64(fair))
			if at > 2*fair {
				t.Errorf("tenant %d: its turn %d began after %s, and its share is %s", i, k, at, fair)
				break
			}
		}
		t.Logf("bench name=allocation_wait_of_share_tenant_%d value=%.2f unit=times", i, worst)
	}
}

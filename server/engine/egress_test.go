package engine_test

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/capability"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// claimsOf reads a capability as its holder could.
func claimsOf(t *testing.T, token string) (c capability.Claims) {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// withEgress applies another version of the agent on a runner.
func withEgress(t *testing.T, w *et.World, list string) []string {
	t.Helper()
	src := strings.Replace(et.Coder, "  sandbox_tools", "  egress = "+list+"\n  sandbox_tools", 1)
	a, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "c.hcl", Source: []byte(src)})
	if err != nil {
		t.Fatal(err)
	}
	return a.Warnings
}

// INV-10, INV-12: the registries of a definition go to the attempt that runs it,
// with the capability of that attempt, and to nothing else. A definition without
// any gives no sandbox a way out.
func TestEgressOfARunnerTurn(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		if warned := withEgress(t, w, `["modules"]`); len(warned) != 0 {
			t.Errorf("warned of %v", warned)
		}
		_, h := begun(t, w, r)
		work := h.Work.GetTurn()
		same := func(e *runnerv1.Egress) bool {
			return e.GetName() == "modules" && e.GetProtocol() == "go" && e.GetUrl() == "https://modules.example"
		}
		if c := claimsOf(t, h.Terms.Capability); len(work.Egress) != 1 || !same(work.Egress[0]) || !slices.Equal(c.Egress, []string{"modules"}) || c.Attempt != h.ID {
			t.Errorf("work %v, claims %+v", work.Egress, c)
		}
		h.Finish("done", "")
		w.Settle()
	})
	inWorld(t, func(w *et.World, r *et.Runner) {
		_, h := begun(t, w, r)
		if c := claimsOf(t, h.Terms.Capability); len(h.Work.GetTurn().Egress) != 0 || len(c.Egress) != 0 {
			t.Errorf("without egress: %v, %+v", h.Work.GetTurn().Egress, c)
		}
		h.Finish("done", "")
		w.Settle()
	})
}

// A registry that the broker does not have, or not for sandboxed code, is said when
// the definition is applied, and ends a turn before its machine is asked.
func TestEgressThatTheBrokerLacks(t *testing.T) {
	for list, says := range map[string]string{`["modules", "pypi"]`: `no destination "pypi"`, `["weather"]`: `"weather" is not for sandboxed code`} {
		inWorld(t, func(w *et.World, r *et.Runner) {
			w.Settle()
			if warned := withEgress(t, w, list); len(warned) != 1 || !strings.Contains(warned[0], says) {
				t.Errorf("warned of %v", warned)
			}
			turn := w.Submit(w.Session("coder"), "fix it")
			w.Settle()
			if got := wantState(t, w, turn.ID, session.Failed, "policy_denied"); !strings.Contains(got.Message, says) {
				t.Errorf("it says %q", got.Message)
			}
		})
	}
}

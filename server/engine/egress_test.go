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

func whyWaits(t *testing.T, w *et.World, turn session.Turn) engine.Explanation {
	t.Helper()
	x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// A machine whose owner refuses packages gets no turn that names registries: it
// waits, and explain says whose word it is. The same machine takes turns that name
// none, and this one once its owner changed his mind. INV-10.
func TestOwnerRefusesEgress(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		r.Facts.RefusesEgress = true
		r.Connect()
		_, h := begun(t, w, r) // no registry is named
		h.Finish("done", "")
		w.Settle()
		withEgress(t, w, `["modules"]`)
		turn := w.Submit(w.Session("coder"), "fix it")
		w.Settle()
		x := whyWaits(t, w, turn)
		if len(x.Runners) != 1 || x.Runners[0].Eligible || !strings.Contains(x.WaitingFor, "no sandbox there read packages") || !slices.ContainsFunc(x.Remedies, func(s string) bool { return strings.Contains(s, "package_egress") }) {
			t.Errorf("%+v", x)
		}
		if len(x.Registries) != 1 || x.Registries[0].By != "owner" || x.Registries[0].Verbs != "GET and HEAD" || x.Registries[0].Intention != "/etc/broker/paths/modules.hcl:1 allows it" {
			t.Errorf("registries: %+v", x.Registries)
		}
		r.Facts.RefusesEgress = false
		r.Connect()
		w.Until("the turn to be placed", func() bool { return w.Turn(turn.ID).State == session.RunningModel })
		h = r.Turn()
		h.Begin()
		if x := whyWaits(t, w, turn); len(x.Registries) != 1 || x.Registries[0].By != "" {
			t.Errorf("allowed: %+v", x.Registries)
		}
		h.Finish("done", "")
		w.Settle()
	})
}

// What sandboxes may read packages from stands beside the tools, with verbs, the
// path entry that decides, and who says no.
func TestEffectiveRegistries(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		if x, _ := found(t, w, "coder", ""); len(x.Registries) != 0 {
			t.Errorf("without egress: %+v", x.Registries)
		}
		withEgress(t, w, `["modules"]`)
		one := func() engine.EffectiveRegistry {
			t.Helper()
			x, _ := found(t, w, "coder", "")
			if len(x.Registries) != 1 {
				t.Fatalf("%+v", x.Registries)
			}
			return x.Registries[0]
		}
		if got := one(); got != (engine.EffectiveRegistry{Destination: "modules", URL: "https://modules.example", Protocol: "go", Verbs: "GET and HEAD", Intention: "/etc/broker/paths/modules.hcl:1 allows it"}) {
			t.Errorf("%+v", got)
		}
		_, bob := w.Principal("local", "bob", false) // is not told where the broker's files lie
		if x, err := w.Engine.EffectiveTools(ctx(), et.Caller(bob), "coder", ""); err != nil || len(x.Registries) != 1 || x.Registries[0].Intention != "modules.hcl:1 allows it" || x.ModelIntention != "model-scripted.hcl:1 allows it" {
			t.Errorf("somebody who is no admin: %+v, %v", x, err)
		}
		second := w.Join("desktop", "files.read")
		r.Facts.RefusesEgress = true
		r.Connect()
		if got := one(); got.By != "" || !strings.Contains(got.Why, "not on laptop") {
			t.Errorf("one of two machines refuses: %+v", got)
		}
		second.Facts.RefusesEgress = true
		second.Connect()
		if got := one(); got.By != "owner" || !strings.Contains(got.Why, "desktop, laptop") {
			t.Errorf("both refuse: %+v", got)
		}
		w.Broker.Bar("modules")
		if got := one(); got.By != "path" || !strings.Contains(got.Why, "may not reach modules") {
			t.Errorf("no path: %+v", got)
		}
		w.Broker.SetDown(true)
		if got := one(); got.By != "broker" || !strings.Contains(got.Why, "does not say") {
			t.Errorf("the broker is away: %+v", got)
		}
	})
}

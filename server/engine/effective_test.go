package engine_test

import (
	"slices"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
)

// found asks what the caller's assistant would be offered.
func found(t *testing.T, w *et.World, agent, session string) (engine.Effective, map[string]engine.EffectiveTool) {
	t.Helper()
	x, err := w.Engine.EffectiveTools(ctx(), w.Me(), agent, session)
	if err != nil {
		t.Fatal(err)
	}
	tools := map[string]engine.EffectiveTool{}
	for _, tool := range x.Tools {
		tools[tool.Ref] = tool
	}
	return x, tools
}

// What is said to be offered is what the model of a turn is offered, no tool more
// and none less, and everything else has a reason of its kind.
func TestEffectiveToolsAreThoseOfATurn(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		for _, agent := range []string{"assistant", "coder"} {
			x, tools := found(t, w, agent, "")
			var said []string
			for _, tool := range x.Tools {
				if tool.State != engine.ToolWithheld {
					said = append(said, tool.Alias)
				}
			}
			if agent == "assistant" {
				w.Broker.Say(et.Script(et.Text("hello")))
				w.Submit(w.Session(agent), "hello")
				w.Settle()
				var offered []string
				for _, tool := range w.Broker.Requests()[0].GetTools() {
					offered = append(offered, tool.GetAlias())
				}
				if !slices.Equal(said, offered) {
					t.Errorf("said %v, offered %v", said, offered)
				}
			}
			if x.ModelWhy != "" || x.Route != "scripted" || tools["files.read"].State != engine.ToolOffered || !slices.Equal(tools["files.read"].Machines, []string{"laptop"}) {
				t.Errorf("%s: %+v", agent, x)
			}
		}
	})
}

func TestEffectiveToolsSayWhy(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		expect := func(when, ref, state, by, why string) {
			t.Helper()
			_, tools := found(t, w, "assistant", "")
			if got := tools[ref]; got.State != state || got.By != by || !strings.Contains(got.Why, why) {
				t.Errorf("%s: %s is %s by %q: %s", when, ref, got.State, got.By, got.Why)
			}
		}
		expect("without a grant", "http:forecast", engine.ToolRefused, "authority", "bivouac grant create --agent assistant --credential weather-token")
		g, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "assistant", Credentials: []string{"weather-token"}})
		if err != nil {
			t.Fatal(err)
		}
		expect("with one", "http:forecast", engine.ToolOffered, "", "")
		w.Broker.Bar("mail")
		expect("no path", "http:send", engine.ToolRefused, "path", "may not reach mail")
		expect("another path", "http:order", engine.ToolOffered, "", "")
		r.Facts.Actions = []string{"files.read"}
		r.Connect()
		expect("the owner offers less", "files.write", engine.ToolWithheld, "enumeration", "the owner of laptop offers files.read")
		r.Facts.Paused = true
		r.Connect()
		expect("paused", "files.read", engine.ToolRefused, "lease", "laptop")
		r.Facts.Paused = false
		r.Connect()
		expect("no longer", "files.read", engine.ToolOffered, "", "")
		r.Disconnect()
		expect("away", "files.read", engine.ToolRefused, "lease", "bivouac edge list")
		if _, err := w.Engine.RevokeRunner(ctx(), w.Me(), r.ID, ""); err != nil {
			t.Fatal(err)
		}
		expect("revoked", "files.read", engine.ToolWithheld, "machine", "")
		w.Broker.SetDown(true)
		expect("the broker is away", "http:order", engine.ToolRefused, "broker", "the broker does not say")
		w.Broker.SetDown(false)
		if _, err := w.Engine.RevokeGrant(ctx(), w.Me(), g.ID, ""); err != nil {
			t.Fatal(err)
		}
		if x, _ := found(t, w, "assistant", ""); x.ModelBy != "authority" || !strings.Contains(x.ModelWhy, "was revoked") {
			t.Errorf("a revoked grant: %+v", x)
		}
	})
}

// A session is judged by its own version, and only for whom it belongs to.
func TestEffectiveToolsOfASession(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		s := w.Session("assistant")
		without := strings.Replace(et.Assistant, `"files.list", "files.read", "files.write"`, `"files.list"`, 1)
		if _, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "a.hcl", Source: []byte(without)}); err != nil {
			t.Fatal(err)
		}
		if _, tools := found(t, w, "", s.ID.String()); tools["files.read"].State != engine.ToolOffered {
			t.Errorf("the session's version: %+v", tools)
		}
		if _, tools := found(t, w, "assistant", ""); tools["files.read"].State != "" {
			t.Errorf("the current version: %+v", tools["files.read"])
		}
		if _, err := w.Engine.EffectiveTools(ctx(), w.Me(), "coder", s.ID.String()); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("another agent: %v", err)
		}
		if _, err := w.Engine.EffectiveTools(ctx(), w.Me(), "nobody", ""); protocol.CodeOf(err) != protocol.CodeNotFound {
			t.Errorf("no agent: %v", err)
		}
		_, other := w.Principal("acme", "eve", true)
		if _, err := w.Engine.EffectiveTools(ctx(), et.Caller(other), "", s.ID.String()); protocol.CodeOf(err) != protocol.CodeNotFound {
			t.Errorf("another tenant: %v", err)
		}
	})
}

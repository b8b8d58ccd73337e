package broker_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

// await until something holds, in virtual time.
func (w *world) await(holds func() bool) {
	w.t.Helper()
	for range 1000 {
		if holds() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.t.Fatal("it never held")
}

// A refusal begins with its kind and ends with advice, so that a model can read
// what to do; every kind of the table is met, and its code is the table's.
func TestRefusalsSayTheirKind(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		model := func(route string, change func(*capability.Claims)) error {
			_, _, err := call(t.Context(), server, modelRequest(w.sign(w.claims(change)), route, "hello"))
			return err
		}
		invoke := func(claims func(*capability.Claims), change func(*brokerv1.InvokeRequest)) error {
			_, err := server.broker.Invoke(t.Context(), w.invocation(claims, change))
			return protocol.FromConnect(err)
		}
		for name, tc := range map[string]struct {
			err  error
			kind broker.Refusal
		}{
			"presenter":     {model("main", func(c *capability.Claims) { c.Presenter = thumbprint(w.runnerCert) }), broker.ByAuthority},
			"unknown grant": {model("main", func(c *capability.Claims) { c.Grant = newID[protocol.GrantKind]() }), broker.ByAuthority},
			"no grant":      {invoke(func(c *capability.Claims) { c.Grant, c.SealedGrant = "", nil }, nil), broker.ByAuthority},
			"route":         {model("public", func(c *capability.Claims) { c.Models = []string{"main"} }), broker.ByPolicy},
			"method":        {invoke(nil, func(in *brokerv1.InvokeRequest) { in.Tool.Method = "DELETE" }), broker.ByPolicy},
			"tool":          {invoke(func(c *capability.Claims) { c.Tools = nil }, nil), broker.ByPolicy},
			"tenant's cap":  {model("main", func(c *capability.Claims) { c.TenantName = "capped" }), broker.ByCap},
			"cap of spend":  {model("main", func(c *capability.Claims) { c.TenantName = "poor" }), broker.ByCap},
			"path":          {model("main", func(c *capability.Claims) { c.Agent = "coder" }), broker.ByPath},
			"no such route": {model("nowhere", func(c *capability.Claims) { c.Models = []string{"nowhere"} }), broker.ByPath},
			"boundary":      {model("main", func(c *capability.Claims) { c.DataBoundary = "secret" }), broker.ByBoundary},
			"slice":         {model("main", func(c *capability.Claims) { c.SliceCeiling = 1 }), broker.ByBudget},
			"no slice":      {model("main", func(c *capability.Claims) { c.Slice = "" }), broker.ByBudget},
		} {
			advice, codes := broker.Refused(tc.kind)
			text := ""
			if tc.err != nil {
				text = tc.err.Error()
			}
			if !strings.HasPrefix(text, "refused by "+string(tc.kind)+": ") || !strings.HasSuffix(text, ". "+advice) || !codes[protocol.CodeOf(tc.err)] {
				t.Errorf("%s: %v is not by %s", name, tc.err, tc.kind)
			}
		}
		// A fault is no refusal, and says so itself.
		w.feed.silence(true)
		time.Sleep(3 * time.Second)
		if err := model("main", nil); protocol.CodeOf(err) != protocol.CodeUnavailable || strings.Contains(err.Error(), "refused by") {
			t.Errorf("under a stale feed: %v", err)
		}
	})
}

package broker_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac/consul/consultest"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

// answering gives one status after the other, then 200, and remembers when and under
// which key each request came.
type answering struct {
	w        *world
	statuses []int
	after    string
	at       []time.Time
	keys     map[string]bool
}

func (a *answering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.at, a.keys[r.Header.Get("Idempotency-Key")] = append(a.at, time.Now()), true
	if len(a.statuses) == 0 {
		w.WriteHeader(http.StatusOK)
		return
	}
	if a.after != "" {
		w.Header().Set("Retry-After", a.after)
	}
	w.WriteHeader(a.statuses[0])
	a.statuses = a.statuses[1:]
}

// Only what its class lets be sent again is, after a no that leaves nothing in doubt,
// for as long as the destination asks, and never beyond the tool's time. INV-5.
func TestToolsAreSentAgain(t *testing.T) {
	get := func(*brokerv1.HttpTool) {}
	read := func(h *brokerv1.HttpTool) { h.Reads, h.Repeatable = true, true }
	keyed := func(h *brokerv1.HttpTool) {
		h.Method, h.Body, h.Path, h.IdempotencyHeader, h.Repeatable = "POST", []string{"city"}, "/notes", "Idempotency-Key", true
	}
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		for name, tc := range map[string]struct {
			tool     func(*brokerv1.HttpTool)
			statuses []int
			after    string
			timeout  int32
			sent     int
			status   int32
		}{
			"a read, after what a proxy says":       {tool: read, statuses: []int{503, 502}, sent: 3, status: 200},
			"a read, when it is asked to":           {tool: read, statuses: []int{429}, after: "3", sent: 2, status: 200},
			"a read, up to a bound":                 {tool: read, statuses: []int{503, 503, 503, 503}, sent: 3, status: 503},
			"a read that shall wait too long":       {tool: read, statuses: []int{429}, after: "60", sent: 1, status: 429},
			"a read without the time":               {tool: read, statuses: []int{429}, after: "3", timeout: 2000, sent: 1, status: 429},
			"a read that failed":                    {tool: read, statuses: []int{500}, sent: 1, status: 500},
			"a GET that may do something":           {tool: get, statuses: []int{503}, sent: 1, status: 503},
			"an effect under its key, refused":      {tool: keyed, statuses: []int{429}, sent: 2, status: 200},
			"an effect under its key, in doubt":     {tool: keyed, statuses: []int{503}, sent: 1, status: 503},
			"an effect under its key, doubt later":  {tool: keyed, statuses: []int{429, 504}, sent: 2, status: 504},
			"an effect that is said, and no method": {tool: func(h *brokerv1.HttpTool) { keyed(h); h.IdempotencyHeader = "" }, statuses: []int{429}, sent: 1, status: 429},
			"an opaque effect":                      {tool: func(h *brokerv1.HttpTool) { keyed(h); h.Repeatable = false }, statuses: []int{429}, sent: 1, status: 429},
		} {
			a := &answering{w: w, statuses: tc.statuses, after: tc.after, keys: map[string]bool{}}
			w.tools.answers(a.ServeHTTP)
			in := w.invocation(nil, func(r *brokerv1.InvokeRequest) { tc.tool(r.Tool); r.Tool.TimeoutMs = tc.timeout })
			r, err := invoke(t.Context(), server, in)
			if err != nil || r.GetHttpStatus() != tc.status || len(a.at) != tc.sent || len(a.keys) != 1 {
				t.Errorf("%s: %v %v, sent %d times under %d keys", name, r, err, len(a.at), len(a.keys))
			}
			if tc.after == "3" && len(a.at) > 1 && a.at[1].Sub(a.at[0]) < 3*time.Second {
				t.Errorf("%s: again after %s", name, a.at[1].Sub(a.at[0]))
			}
		}
	})
}

// What is sent again asks the paths again, and a revoked grant ends the waiting: the
// answer that came before stands. INV-13.
func TestSendingAgainEnds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		read := func(r *brokerv1.InvokeRequest) { r.Tool.Reads = true }
		a := &answering{w: w, statuses: []int{429, 429}, after: "5", keys: map[string]bool{}}
		w.tools.answers(a.ServeHTTP)
		time.AfterFunc(time.Second, func() { w.paths.Set(consultest.Allow("model-main", "agent-assistant")) })
		r, err := invoke(t.Context(), server, w.invocation(nil, read))
		if err != nil || r.GetHttpStatus() != 429 || len(a.at) != 1 {
			t.Errorf("%v %v, sent %d times", r, err, len(a.at))
		}
		w.allowAll()
		a.statuses = []int{429}
		if r, err := invoke(t.Context(), server, w.invocation(nil, read)); err != nil || r.GetHttpStatus() != 200 || len(a.at) != 3 {
			t.Errorf("%v %v, sent %d times", r, err, len(a.at))
		}
		a.statuses = []int{429}
		time.AfterFunc(time.Second, func() { w.outside.take(w.grant.ID, "it was taken") })
		if r, err := invoke(t.Context(), server, w.invocation(nil, read)); err != nil || r.GetHttpStatus() != 429 || len(a.at) != 4 {
			t.Errorf("%v %v, sent %d times", r, err, len(a.at))
		}
	})
}

// All pages of a list come in one answer, with the credential in none of it, and the
// call log has one call. INV-17.
func TestPagesOfATool(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		w.tools.answers(func(out http.ResponseWriter, r *http.Request) {
			n := len(w.tools.requests())
			if n < 3 {
				out.Header().Set("Link", fmt.Sprintf(`</api/list?after=%d>; rel="next"`, n))
			}
			fmt.Fprintf(out, `[{"n":%d,"as":%q}]`, n, r.Header.Get("Authorization"))
		})
		in := w.invocation(func(c *capability.Claims) { c.Destinations = []string{"lists"} }, func(r *brokerv1.InvokeRequest) {
			r.Tool.Destination, r.Tool.Path, r.Tool.Reads = "lists", "/list?q={city}", true
		})
		r, err := invoke(t.Context(), server, in)
		want := `[{"n":1,"as":"Bearer [redacted]"},{"n":2,"as":"Bearer [redacted]"},{"n":3,"as":"Bearer [redacted]"}]`
		if err != nil || string(r.GetBody()) != want || r.GetUnread() != "" {
			t.Errorf("%v %v", r, err)
		}
		if got := strings.Join(w.tools.requests(), "|"); got != "GET /api/list?q=Bern |GET /api/list?after=1 |GET /api/list?after=2 " {
			t.Errorf("asked %q", got)
		}
		l, err := server.broker.LookupAction(t.Context(), &brokerv1.LookupActionRequest{ActionId: in.GetActionId()})
		if err != nil || l.GetBodyDigest() != r.GetBodyDigest() {
			t.Errorf("%v %v", l, err)
		}
		// A page that paths refuse is left out, and said.
		w.tools.answers(func(out http.ResponseWriter, r *http.Request) {
			out.Header().Set("Link", `</elsewhere>; rel="next"`)
			io.WriteString(out, `[1]`)
		})
		r, err = invoke(t.Context(), server, w.invocation(func(c *capability.Claims) { c.Destinations = []string{"lists"} }, func(r *brokerv1.InvokeRequest) {
			r.Tool.Destination, r.Tool.Path, r.Tool.Reads = "lists", "/list?q={city}", true
		}))
		if err != nil || string(r.GetBody()) != `[1]` || !strings.Contains(r.GetUnread(), "out of the destination") {
			t.Errorf("%v %v", r, err)
		}
	})
}

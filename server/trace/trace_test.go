package trace_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
	"bivouac/server/trace"
)

func TestContext(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	c, ok := trace.Parse(good)
	if !ok || c.String() != good {
		t.Fatalf("%v %v", c, ok)
	}
	for _, bad := range []string{"", "x", strings.ToUpper(good), "01" + good[2:], good + "-x", "00-" + strings.Repeat("0", 32) + good[35:], good[:36] + strings.Repeat("0", 16) + "-01", good[:54] + "g"} {
		if _, ok := trace.Parse(bad); ok {
			t.Errorf("%q is taken", bad)
		}
	}
	in, own := trace.Of("trn_1", good), trace.Of("trn_1", "")
	if in.Trace != c.Trace || in.Parent == c.Parent || own.Trace == c.Trace || own != trace.Of("trn_1", "nonsense") || own.Flags != 1 {
		t.Errorf("in the caller's trace %s, in its own %s", in, own)
	}
}

// collector keeps what it is sent, and refuses the first request.
type collector struct {
	refusals int
	got      []*tracepb.TracesData
	url      string
}

func (c *collector) RoundTrip(r *http.Request) (*http.Response, error) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	c.url = r.URL.String()
	answer := func(code int) *http.Response {
		return &http.Response{StatusCode: code, Status: http.StatusText(code), Body: io.NopCloser(&bytes.Buffer{}), Request: r}
	}
	if c.refusals > 0 {
		c.refusals--
		return answer(http.StatusServiceUnavailable), nil
	}
	var d tracepb.TracesData
	if err := proto.Unmarshal(b, &d); err != nil {
		return answer(http.StatusBadRequest), nil
	}
	c.got = append(c.got, &d)
	return answer(http.StatusOK), nil
}

// A turn with model calls, a device action on a machine and an approval is one
// trace in its caller's, whole and without a word of what was said.
func TestExport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x *trace.Exporter
		w := et.New(t, et.WithEnded(func(id protocol.TurnID) { x.Ended(id) }))
		r := w.Join("laptop", "files.list", "files.read", "files.write")
		r.Connect()
		c := &collector{refusals: 1}
		x, err := trace.New(trace.Config{Store: w.Store, Endpoint: "http://collector:4318", Version: "v1", Client: &http.Client{Transport: c}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- x.Run(ctx) }()
		defer func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		w.Broker.Say(et.Script(et.Calls(
			et.Call{ID: "c1", Alias: "files_read", Arguments: `{"path":"home/canary.txt"}`}, et.Call{ID: "c2", Alias: "files_write", Arguments: `{"path":"home/canary.txt","content":"canary"}`}),
			et.Text("canary")))
		const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		s := w.Session("assistant")
		a, err := w.Engine.SubmitTurn(t.Context(), w.Me(), engine.NewTurn{Session: s.ID, MessageID: "m", Prompt: "canary", TraceParent: parent})
		if err != nil {
			t.Fatal(err)
		}
		w.Until("the question", func() bool { return w.Turn(a.Turn.ID).State == session.WaitingApproval })
		w.Sleep(5 * time.Second)
		ap := w.Approvals(a.Turn.ID)[0]
		if _, err := w.Engine.DecideApproval(t.Context(), w.Me(), engine.ApprovalDecision{Approval: ap.ID, Digest: ap.Digest, Approve: true}); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		if got := w.Turn(a.Turn.ID); got.State != session.Completed {
			t.Fatalf("%+v", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(c.got) != 1 || c.url != "http://collector:4318/v1/traces" {
			t.Fatalf("%d exports to %s", len(c.got), c.url)
		}
		if text := c.got[0].String(); strings.Contains(text, "canary") {
			t.Errorf("a trace says what was said: %s", text)
		}
		check(t, c.got[0].GetResourceSpans()[0].GetScopeSpans()[0].GetSpans(), a.Turn.ID.String(), parent)
	})
}

func check(t *testing.T, spans []*tracepb.Span, turn, parent string) {
	t.Helper()
	count := map[string]int{}
	ids := map[string]bool{}
	work := trace.Of(turn, parent)
	var root *tracepb.Span
	for _, s := range spans {
		count[s.GetName()]++
		if id := hex.EncodeToString(s.GetSpanId()); ids[id] {
			t.Errorf("two spans have the id %s", id)
		} else {
			ids[id] = true
		}
		if hex.EncodeToString(s.GetTraceId()) != parent[3:35] || s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() || s.GetEndTimeUnixNano() == 0 {
			t.Errorf("span %s: %v", s.GetName(), s)
		}
		if s.GetName() == "turn" {
			root = s
		} else if !bytes.Equal(s.GetParentSpanId(), work.Parent[:]) {
			t.Errorf("%s hangs from %x", s.GetName(), s.GetParentSpanId())
		}
		if s.GetName() == "approval" && s.GetEndTimeUnixNano()-s.GetStartTimeUnixNano() < uint64(5*time.Second) {
			t.Errorf("the approval took %d ns", s.GetEndTimeUnixNano()-s.GetStartTimeUnixNano())
		}
	}
	if root == nil || hex.EncodeToString(root.GetParentSpanId()) != parent[36:52] || !bytes.Equal(root.GetSpanId(), work.Parent[:]) {
		t.Errorf("root %v", root)
	}
	for name, want := range map[string]int{"turn": 1, "queue": 1, "model": 2, "tool": 2, "approval": 1} {
		if count[name] != want {
			t.Errorf("%d spans %q, want %d: %v", count[name], name, want, count)
		}
	}
	if count["attempt"] < 3 { // read, digest and write on the machine
		t.Errorf("%d attempts", count["attempt"])
	}
}

// A queue that nobody empties loses turns, and holds nobody up.
func TestEndedNeverWaits(t *testing.T) {
	x, err := trace.New(trace.Config{Endpoint: "http://collector:4318"})
	if err != nil {
		t.Fatal(err)
	}
	for range 10000 {
		x.Ended("trn_1")
	}
	for _, bad := range []string{"", "collector:4318", "ftp://x", "http://user:password@x", "http://x?key=1"} {
		if err := trace.CheckEndpoint(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

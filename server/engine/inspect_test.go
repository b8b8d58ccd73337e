package engine

import (
	"strings"
	"testing"
	"time"

	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
)

// INV-5: a look-up proves that nothing happened only where it saw all there is, and
// late enough; what it finds, it finds in any part.
func TestWhatALookUpShows(t *testing.T) {
	now := time.Now()
	a := session.Action{Arguments: `{"id":"p1"}`, IdempotencyKey: "key-1", DispatchedAt: now.Add(-time.Minute)}
	for name, tc := range map[string]struct {
		mark string
		resp *brokerv1.InvokeResponse
		sent time.Duration // ago
		want execution.Knower
	}{
		"there":                        {resp: &brokerv1.InvokeResponse{HttpStatus: 200}, want: execution.SeenDone},
		"there by its mark":            {mark: "parcel {id}", resp: &brokerv1.InvokeResponse{HttpStatus: 200, Body: []byte("[parcel p1]")}, want: execution.SeenDone},
		"there by its key":             {mark: "{idempotency_key}", resp: &brokerv1.InvokeResponse{HttpStatus: 200, Body: []byte(`"key-1"`)}, want: execution.SeenDone},
		"there, in a part":             {mark: "parcel {id}", resp: &brokerv1.InvokeResponse{HttpStatus: 200, Body: []byte("[parcel p1"), Truncated: true, Unread: "more"}, want: execution.SeenDone},
		"not there":                    {resp: &brokerv1.InvokeResponse{HttpStatus: 404}, want: execution.SeenAbsent},
		"gone":                         {resp: &brokerv1.InvokeResponse{HttpStatus: 410}, want: execution.SeenAbsent},
		"without its mark":             {mark: "parcel {id}", resp: &brokerv1.InvokeResponse{HttpStatus: 200, Body: []byte("[parcel p2]")}, want: execution.SeenAbsent},
		"without its mark, cut":        {mark: "parcel {id}", resp: &brokerv1.InvokeResponse{HttpStatus: 200, Body: []byte("[parcel p2"), Truncated: true}, want: execution.SeenNothing},
		"without its mark, a part":     {mark: "parcel {id}", resp: &brokerv1.InvokeResponse{HttpStatus: 206, Body: []byte(`["parcel p2"]`)}, want: execution.SeenNothing},
		"without its mark, more pages": {mark: "parcel {id}", resp: &brokerv1.InvokeResponse{HttpStatus: 200, Body: []byte("[parcel p2]"), Unread: "page 2 was answered with HTTP 500"}, want: execution.SeenNothing},
		"not there yet":                {resp: &brokerv1.InvokeResponse{HttpStatus: 404}, sent: time.Second, want: execution.SeenNothing},
		"a proxy's word":               {resp: &brokerv1.InvokeResponse{HttpStatus: 503}, want: execution.SeenNothing},
		"a redirect":                   {resp: &brokerv1.InvokeResponse{HttpStatus: 302}, want: execution.SeenNothing},
		"not let in":                   {resp: &brokerv1.InvokeResponse{HttpStatus: 401}, want: execution.SeenNothing},
	} {
		tool := policy.Tool{HTTP: &policy.HTTPTool{Timeout: 10 * time.Second, Lookup: &policy.Lookup{Path: "/parcels/{id}", Contains: tc.mark}}}
		b := a
		if tc.sent > 0 {
			b.DispatchedAt = now.Add(-tc.sent)
		}
		knower, o := seen(b, tool, tc.resp, nil, now)
		if knower != tc.want || (o.result != nil) != (tc.want != execution.SeenNothing) {
			t.Errorf("%s: %s, %+v", name, knower, o)
		}
	}
}

// INV-5: the command that looks whether another was run says so by its exit status: 0 it
// was, 1 it was not, and anything else is no word on it.
func TestWhatACommandShows(t *testing.T) {
	now, exit := time.Now(), func(n int32) *brokerv1.InvokeResponse {
		return &brokerv1.InvokeResponse{HttpStatus: 200, ExitStatus: &n, Failed: n != 0}
	}
	tool := policy.Tool{Ref: "ssh:restart", Recovery: runtimev1.Recovery_RECOVERY_INSPECTABLE, SSH: &policy.SSHTool{Destination: "web1", Command: "restart", Credential: "web1-ssh", Timeout: 10 * time.Second}}
	for name, tc := range map[string]struct {
		resp *brokerv1.InvokeResponse
		sent time.Duration // ago
		want execution.Knower
	}{
		"it was":       {exit(0), time.Second, execution.SeenDone},
		"it was not":   {exit(1), time.Minute, execution.SeenAbsent},
		"not yet":      {exit(1), time.Second, execution.SeenNothing},
		"a failure":    {exit(2), time.Minute, execution.SeenNothing},
		"not there":    {exit(127), time.Minute, execution.SeenNothing},
		"by a signal":  {&brokerv1.InvokeResponse{HttpStatus: 200, Failed: true}, time.Minute, execution.SeenNothing},
		"of a network": {&brokerv1.InvokeResponse{HttpStatus: 404}, time.Minute, execution.SeenNothing},
	} {
		knower, o := seen(session.Action{Arguments: `{}`, DispatchedAt: now.Add(-tc.sent)}, tool, tc.resp, nil, now)
		if knower != tc.want || (o.result != nil) != (tc.want != execution.SeenNothing) || o.result != nil && !strings.Contains(o.evidence, "exit status") {
			t.Errorf("%s: %s, %+v", name, knower, o)
		}
	}
	a := session.Action{ID: "act_1", Arguments: `{"unit":"web"}`, ArgumentsDigest: "d"}
	look, err := lookAction(a, tool, "act_2")
	got := lookTool(tool)
	if err != nil || look.ID != "act_2" || look.Arguments != a.Arguments || !looked(tool) || !got.GetSsh().GetInspects() || !got.GetSsh().GetInspectable() || got.GetSsh().GetCommand() != "restart" || !got.GetReads() || !got.GetRepeatable() {
		t.Errorf("%+v %v %v", look, got, err)
	}
	tool.Recovery = runtimev1.Recovery_RECOVERY_OPAQUE
	if got := gatewayTool(tool); looked(tool) || got.GetSsh().GetInspectable() || got.GetSsh().GetInspects() || got.GetDestination() != "web1" || got.GetCredential() != "web1-ssh" || got.GetTimeoutMs() != 10_000 || got.GetMethod() != "" {
		t.Errorf("%v", got)
	}
}

// What was not read of a list is the first thing that a model reads of it.
func TestUnreadPagesAreSaid(t *testing.T) {
	r := &brokerv1.InvokeResponse{HttpStatus: 200, ContentType: "application/json", Body: []byte("[1]")}
	if got := bodyText(r); got != "[1]" {
		t.Errorf("%q", got)
	}
	r.Unread = "2 pages were read"
	if got := bodyText(r); !strings.HasPrefix(got, "[not all of it: 2 pages were read]\n[1]") {
		t.Errorf("%q", got)
	}
}

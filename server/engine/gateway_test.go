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

// A tool of an MCP server that says itself that it failed is a failed call, whatever
// the status, now and in the call log's word; one that was sent before proves
// nothing of the first sending. INV-5.
func TestFailedAnswers(t *testing.T) {
	once := session.Action{CallID: "c", Effect: runtimev1.Effect_EFFECT_OUTBOUND, IntentAt: time.UnixMicro(5)}
	twice := once
	twice.Evidence = sentAgain
	for name, c := range map[string]struct {
		status int32
		failed bool
		event  session.ActionEvent
		text   string
		says   string
	}{
		"done":           {200, false, session.ActionSucceed, "found", "HTTP 200"},
		"failed":         {200, true, session.ActionFail, "found", "a failure of the tool itself"},
		"status":         {500, false, session.ActionFail, "HTTP 500\nfound", "HTTP 500"},
		"status, told":   {401, true, session.ActionFail, "found", "HTTP 401"},
		"redirect, told": {302, true, session.ActionFail, "found", "HTTP 302"},
	} {
		o := outcomeOfAnswer(once, &brokerv1.InvokeResponse{HttpStatus: c.status, Failed: c.failed, ContentType: "text/plain", Body: []byte("found")})
		if o.event != c.event || o.result.GetText() != c.text || !strings.Contains(o.evidence, c.says) {
			t.Errorf("%s: %v %q %q", name, o.event, o.result.GetText(), o.evidence)
		}
		found := &brokerv1.LookupActionResponse{State: brokerv1.CallState_CALL_STATE_ANSWERED, HttpStatus: c.status, Failed: c.failed, LogSinceUs: 1}
		knower, o := evidenceOf(once, found, nil)
		if knower != execution.LogAnswered || o.event != c.event || !strings.Contains(o.evidence, c.says) {
			t.Errorf("%s, by the log: %v %v %q", name, knower, o.event, o.evidence)
		}
		if knower, _ := evidenceOf(twice, found, nil); (knower == execution.LogAnswered) != (c.event == session.ActionSucceed) {
			t.Errorf("%s, sent again: %v", name, knower)
		}
	}
	for _, status := range []int32{408, 502, 503, 504, 524} { // an MCP server's, which marks them as failed
		found := &brokerv1.LookupActionResponse{State: brokerv1.CallState_CALL_STATE_ANSWERED, HttpStatus: status, Failed: true, LogSinceUs: 1}
		if knower, o := evidenceOf(once, found, nil); knower != execution.LogLost || !strings.Contains(o.evidence, "does not say") || !unsure(once, found) {
			t.Errorf("%d: %v %q", status, knower, o.evidence)
		}
		reads := session.Action{CallID: "c", Effect: runtimev1.Effect_EFFECT_READ, IntentAt: time.UnixMicro(5)}
		if knower, o := evidenceOf(reads, found, nil); knower != execution.LogAnswered || o.event != session.ActionFail || unsure(reads, found) {
			t.Errorf("%d of a read: %v %v", status, knower, o.event)
		}
	}
}

// What the broker is told of a tool of an MCP server is what the definition says.
func TestGatewayTool(t *testing.T) {
	tool := policy.Tool{Ref: "mcp:t", Effect: runtimev1.Effect_EFFECT_OUTBOUND, Recovery: runtimev1.Recovery_RECOVERY_OPAQUE,
		MCP: &policy.MCPTool{Destination: "tickets", Tool: "search", SchemaDigest: "sha256:1", Credential: "key", Timeout: 3 * time.Second}}
	got := gatewayTool(tool)
	if m := got.GetMcp(); got.GetDestination() != "tickets" || got.GetCredential() != "key" || got.GetTimeoutMs() != 3000 || got.GetMethod() != "" ||
		m.GetTool() != "search" || m.GetSchemaDigest() != "sha256:1" || m.GetReads() || m.GetRepeatable() {
		t.Errorf("%v", got)
	}
	for name, c := range map[string]struct {
		effect            runtimev1.Effect
		recovery          runtimev1.Recovery
		reads, repeatable bool
	}{
		"a read":     {runtimev1.Effect_EFFECT_READ, runtimev1.Recovery_RECOVERY_OPAQUE, true, false},
		"idempotent": {runtimev1.Effect_EFFECT_OUTBOUND, runtimev1.Recovery_RECOVERY_IDEMPOTENT, false, true},
	} {
		tool.Effect, tool.Recovery = c.effect, c.recovery
		if m := gatewayTool(tool).GetMcp(); m.GetReads() != c.reads || m.GetRepeatable() != c.repeatable {
			t.Errorf("%s: %v", name, m)
		}
	}
	if got := gatewayTool(policy.Tool{Ref: "http:x", HTTP: &policy.HTTPTool{Destination: "d", Method: "GET", Path: "/"}}); got.GetMcp() != nil || got.GetMethod() != "GET" {
		t.Errorf("an http tool: %v", got)
	}
}

// Of a body that was cut, only the character at the cut is left out: bytes in the
// middle of a credential must not be what hides it from a redactor. INV-17.
func TestBodyAsText(t *testing.T) {
	for name, c := range map[string]struct {
		body, want string
		truncated  bool
	}{
		"text":           {"Grüße", "Grüße", false},
		"cut":            {"Grü\xc3", "Grü", true},
		"cut in three":   {"Gr\xe2\x80", "Gr", true},
		"bytes within":   {"s\xffe\xfec\xffret", "s\uFFFDe\uFFFDc\uFFFDret", true},
		"bytes, not cut": {"s\xffecret", "[7 bytes of text/plain, digest d: not text]", false},
		"nothing else":   {"\xff\xfe", "", true},
	} {
		got := bodyText(&brokerv1.InvokeResponse{ContentType: "text/plain", Body: []byte(c.body), Truncated: c.truncated, BodyBytes: int64(len(c.body)), BodyDigest: "d"})
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

package engine

import (
	"errors"
	"os/exec"
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

var restartTool = policy.Tool{Ref: "ssh:restart", Recovery: runtimev1.Recovery_RECOVERY_INSPECTABLE, SSH: &policy.SSHTool{Destination: "web1", Command: "restart", Credential: "web1-ssh", Timeout: 10 * time.Second}}

func exited(status uint32) *brokerv1.InvokeResponse {
	n := int32(status) // the same 32 bits
	return &brokerv1.InvokeResponse{HttpStatus: 200, ExitStatus: &n, Failed: n != 0}
}

// INV-5: the command that looks whether another was run says so by its exit status: 0 it
// was, 10 it was not and cannot be any more, and anything else is no word on it.
func TestWhatACommandShows(t *testing.T) {
	now, tool := time.Now(), restartTool
	for name, tc := range map[string]struct {
		resp *brokerv1.InvokeResponse
		sent time.Duration // ago
		want execution.Knower
	}{
		"it was":               {exited(0), time.Second, execution.SeenDone},
		"it was not":           {exited(10), time.Minute, execution.SeenAbsent},
		"not yet":              {exited(10), time.Second, execution.SeenNothing},
		"what anything says":   {exited(1), time.Minute, execution.SeenNothing},
		"a failure":            {exited(2), time.Minute, execution.SeenNothing},
		"another word":         {exited(11), time.Minute, execution.SeenNothing},
		"not there":            {exited(127), time.Minute, execution.SeenNothing},
		"a crash":              {exited(0xC0000005), time.Minute, execution.SeenNothing},
		"all bits":             {exited(0xFFFFFFFF), time.Minute, execution.SeenNothing},
		"ten, and higher bits": {exited(0x8000000A), time.Minute, execution.SeenNothing},
		"by a signal":          {&brokerv1.InvokeResponse{HttpStatus: 200, Failed: true}, time.Minute, execution.SeenNothing},
		"of a network":         {&brokerv1.InvokeResponse{HttpStatus: 404}, time.Minute, execution.SeenNothing},
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

// looks runs a look-up as sshd does, and has its exit status.
func looks(t *testing.T, c *exec.Cmd) *brokerv1.InvokeResponse {
	t.Helper()
	var ended *exec.ExitError
	if err := c.Run(); err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	return exited(uint32(c.ProcessState.ExitCode()))
}

// INV-5: a look-up that was not run at all is no proof: sshd gives the line to the user's
// shell, and one that was closed meanwhile, and a script that fails, end with a status
// too. The twin is a look-up that ran.
func TestLookUpThatDidNotRun(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		line []string
		want execution.Knower
	}{
		"its shell is false":  {[]string{"false", "-c", "once look key-1"}, execution.SeenNothing},
		"a script that fails": {[]string{"sh", "-c", "set -e; cd /nowhere/at/all; exit 10"}, execution.SeenNothing},
		"a bus that is away":  {[]string{"sh", "-c", "exit 1"}, execution.SeenNothing},
		"no such program":     {[]string{"sh", "-c", "/nowhere/at/all"}, execution.SeenNothing},
		"it ran":              {[]string{"sh", "-c", "exit 10"}, execution.SeenAbsent},
	} {
		resp := looks(t, exec.Command(tc.line[0], tc.line[1:]...))
		if knower, o := seen(session.Action{Arguments: `{}`, DispatchedAt: now.Add(-time.Minute)}, restartTool, resp, nil, now); knower != tc.want {
			t.Errorf("%s: exit status %d became %q: %+v", name, resp.GetExitStatus(), knower, o)
		}
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

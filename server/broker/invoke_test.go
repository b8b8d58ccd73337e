package broker_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

func invoke(ctx context.Context, p peer, in *brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
	r, err := p.broker.Invoke(ctx, in)
	return r, protocol.FromConnect(err)
}

// A tool gets its credential on the way out, and nothing of it comes back. INV-17.
func TestInvoke(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		in := w.invocation(nil, nil)
		r, err := invoke(t.Context(), server, in)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.tools.requests(); len(got) != 1 || got[0] != "GET /api/forecast/Bern " {
			t.Errorf("the upstream got %q", got)
		}
		if r.GetHttpStatus() != 200 || string(r.GetBody()) != `{"sky":"rain","authorised_as":"Bearer [redacted]"}` || r.GetBodyDigest() != canonical.Digest(r.GetBody()) {
			t.Errorf("%v", r)
		}
		l, err := server.broker.LookupAction(t.Context(), &brokerv1.LookupActionRequest{ActionId: in.GetActionId()})
		if err != nil || l.GetState() != brokerv1.CallState_CALL_STATE_ANSWERED || l.GetHttpStatus() != 200 || l.GetBodyDigest() != r.GetBodyDigest() {
			t.Errorf("%v %v", l, err)
		}
	})
}

// Every refusal of an invocation sends nothing; the twin without the change is
// TestInvoke and the last row.
func TestInvokeRefuses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		foreign := w.grant
		foreign.ID, foreign.Principal = newID[protocol.GrantKind](), newID[protocol.PrincipalKind]()
		foreignSealed, err := w.keys.CreateGrant(t.Context(), foreign)
		if err != nil {
			t.Fatal(err)
		}
		bare := authority.Grant{ID: newID[protocol.GrantKind](), Tenant: w.tenant, Principal: w.grant.Principal, Agent: "assistant"}
		bareSealed, err := w.keys.CreateGrant(t.Context(), bare)
		if err != nil {
			t.Fatal(err)
		}
		for name, tc := range map[string]struct {
			claims func(*capability.Claims)
			change func(*brokerv1.InvokeRequest)
			want   protocol.Code
		}{
			"another action":      {change: func(r *brokerv1.InvokeRequest) { r.ActionId = newID[protocol.ActionKind]().String() }, want: protocol.CodePermissionDenied},
			"no action id":        {change: func(r *brokerv1.InvokeRequest) { r.ActionId = "act" }, want: protocol.CodeInvalidArgument},
			"other arguments":     {change: func(r *brokerv1.InvokeRequest) { r.Arguments = `{"city":"Rom"}` }, want: protocol.CodePermissionDenied},
			"not canonical":       {change: func(r *brokerv1.InvokeRequest) { r.Arguments = `{"city": "Bern"}` }, want: protocol.CodeInvalidArgument},
			"another tool":        {change: func(r *brokerv1.InvokeRequest) { r.Tool.Ref = "http:other" }, want: protocol.CodePermissionDenied},
			"another destination": {claims: func(c *capability.Claims) { c.Destinations = []string{"inside"} }, want: protocol.CodePermissionDenied},
			"no such destination": {claims: func(c *capability.Claims) { c.Destinations = []string{"nowhere"} }, change: func(r *brokerv1.InvokeRequest) { r.Tool.Destination = "nowhere" }, want: protocol.CodeNotFound},
			"no path":             {claims: func(c *capability.Claims) { c.Agent = "coder" }, want: protocol.CodePolicyDenied},
			"cap of tenant":       {claims: func(c *capability.Claims) { c.TenantName = "capped" }, want: protocol.CodePolicyDenied},
			"method":              {change: func(r *brokerv1.InvokeRequest) { r.Tool.Method = "DELETE" }, want: protocol.CodePolicyDenied},
			"not bound":           {change: func(r *brokerv1.InvokeRequest) { r.Tool.Credential = "provider-key" }, want: protocol.CodePolicyDenied},
			"bound elsewhere":     {change: func(r *brokerv1.InvokeRequest) { r.Tool.Destination = "inside" }, want: protocol.CodePolicyDenied},
			"private address": {change: func(r *brokerv1.InvokeRequest) { r.Tool.Destination, r.Tool.Credential = "inside", "" },
				want: protocol.CodePolicyDenied},
			"no grant":          {claims: func(c *capability.Claims) { c.Grant, c.SealedGrant = "", nil }, want: protocol.CodePermissionDenied},
			"another's grant":   {claims: func(c *capability.Claims) { c.Grant, c.SealedGrant = foreign.ID, foreignSealed }, want: protocol.CodePermissionDenied},
			"credential absent": {claims: func(c *capability.Claims) { c.Grant, c.SealedGrant = bare.ID, bareSealed }, want: protocol.CodePermissionDenied},
			"another tenant":    {claims: func(c *capability.Claims) { c.Tenant = newID[protocol.TenantKind]() }, want: protocol.CodePermissionDenied},
			"traversal": {claims: func(c *capability.Claims) { c.ArgsDigest = canonical.Digest([]byte(`{"city":".."}`)) },
				change: func(r *brokerv1.InvokeRequest) { r.Arguments = `{"city":".."}` }, want: protocol.CodeInvalidArgument},
			"no tool": {change: func(r *brokerv1.InvokeRequest) { r.Tool = nil }, want: protocol.CodeInvalidArgument},
		} {
			in := w.invocation(tc.claims, tc.change)
			_, err := invoke(t.Context(), server, in)
			if protocol.CodeOf(err) != tc.want || strings.Contains(err.Error(), toolKey) {
				t.Errorf("%s: %v, want %s", name, err, tc.want)
			}
			if in.GetActionId() == "act" {
				continue
			}
			l, err := server.broker.LookupAction(t.Context(), &brokerv1.LookupActionRequest{ActionId: in.GetActionId()})
			if err != nil || l.GetState() != brokerv1.CallState_CALL_STATE_ABSENT {
				t.Errorf("%s: the log says %v %v", name, l, err)
			}
		}
		if got := w.tools.requests(); len(got) != 0 {
			t.Errorf("the upstream got %q", got)
		}
		// The rightful twins: with the grant, and without a credential.
		if _, err := invoke(t.Context(), server, w.invocation(nil, nil)); err != nil {
			t.Error(err)
		}
		if _, err := invoke(t.Context(), server, w.invocation(func(c *capability.Claims) { c.Grant, c.SealedGrant = "", nil },
			func(r *brokerv1.InvokeRequest) { r.Tool.Credential = "" })); err != nil {
			t.Error(err)
		}
	})
}

// INV-5: an action that may have been sent is never sent again, except under the
// same key where the upstream makes that harmless.
func TestActionsAreSentOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		w.tools.answers(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		lookup := func(in *brokerv1.InvokeRequest) brokerv1.CallState {
			t.Helper()
			l, err := server.broker.LookupAction(t.Context(), &brokerv1.LookupActionRequest{ActionId: in.GetActionId()})
			if err != nil {
				t.Fatal(err)
			}
			if sent := l.GetState() == brokerv1.CallState_CALL_STATE_SENT; l.GetFinal() != sent { // nothing runs any more
				t.Errorf("%s, final %t", l.GetState(), l.GetFinal())
			}
			return l.GetState()
		}
		post := func(r *brokerv1.InvokeRequest) { r.Tool.Method = "POST" }
		opaque := w.invocation(nil, post)
		for range 2 {
			if _, err := invoke(t.Context(), server, opaque); protocol.CodeOf(err) != protocol.CodeOutcomeUnknown {
				t.Errorf("opaque: %v", err)
			}
		}
		if n := len(w.tools.requests()); n != 1 || lookup(opaque) != brokerv1.CallState_CALL_STATE_SENT {
			t.Errorf("it was sent %d times, the log says %s", n, lookup(opaque))
		}
		keyed := w.invocation(nil, func(r *brokerv1.InvokeRequest) { post(r); r.Tool.IdempotencyHeader = "Idempotency-Key" })
		if _, err := invoke(t.Context(), server, keyed); protocol.CodeOf(err) != protocol.CodeOutcomeUnknown {
			t.Errorf("keyed: %v", err)
		}
		w.tools.answers(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Header.Get("Idempotency-Key")) })
		other := proto.Clone(keyed).(*brokerv1.InvokeRequest) // the same action under another key
		other.IdempotencyKey = "another"
		if _, err := invoke(t.Context(), server, other); protocol.CodeOf(err) != protocol.CodeOutcomeUnknown {
			t.Errorf("another key: %v", err)
		}
		if r, err := invoke(t.Context(), server, keyed); err != nil || string(r.GetBody()) != keyed.GetIdempotencyKey() {
			t.Errorf("the same key: %v %v", r, err)
		}
	})
}

// A destination that cannot be reached was not sent to: the log takes it back,
// and the action may be tried again.
func TestUnreachedIsNotSent(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		w.tools.ln.Close()
		in := w.invocation(nil, func(r *brokerv1.InvokeRequest) { r.Tool.Method = "POST" })
		for range 2 {
			if _, err := invoke(t.Context(), server, in); protocol.CodeOf(err) != protocol.CodeUnavailable {
				t.Errorf("%v", err)
			}
		}
		l, err := server.broker.LookupAction(t.Context(), &brokerv1.LookupActionRequest{ActionId: in.GetActionId()})
		if err != nil || l.GetState() != brokerv1.CallState_CALL_STATE_ABSENT {
			t.Errorf("%v %v", l, err)
		}
	})
}

// What was told to be absent is not sent by a request that comes late. INV-5.
func TestLateInvocationIsRefused(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		late := w.invocation(nil, nil)
		l, err := server.broker.LookupAction(t.Context(), &brokerv1.LookupActionRequest{ActionId: late.GetActionId()})
		if err != nil || l.GetState() != brokerv1.CallState_CALL_STATE_ABSENT || l.GetLogSinceUs() == 0 {
			t.Fatal(l, err)
		}
		if _, err := invoke(t.Context(), server, late); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || len(w.tools.requests()) != 0 {
			t.Errorf("%v, %d sent", err, len(w.tools.requests()))
		}
		if _, err := invoke(t.Context(), server, w.invocation(nil, nil)); err != nil {
			t.Error(err)
		}
	})
}

// A revocation in the middle of a call ends it as unknown: it may have happened.
func TestRevokedInTheMiddle(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		arrived := make(chan struct{}, 1)
		w.tools.answers(func(_ http.ResponseWriter, r *http.Request) {
			arrived <- struct{}{}
			select {
			case <-r.Context().Done():
			case <-time.After(time.Minute):
			}
		})
		done := make(chan error, 1)
		in := w.invocation(nil, nil)
		go func() {
			_, err := invoke(context.Background(), server, in)
			done <- err
		}()
		<-arrived
		log := func() *brokerv1.LookupActionResponse {
			t.Helper()
			l, err := server.broker.LookupAction(t.Context(), &brokerv1.LookupActionRequest{ActionId: in.GetActionId()})
			if err != nil || l.GetState() != brokerv1.CallState_CALL_STATE_SENT {
				t.Fatal(l, err)
			}
			return l
		}
		if log().GetFinal() {
			t.Error("a call under way is said to be over")
		}
		r, err := server.authority.RevokeGrant(t.Context(), &brokerv1.RevokeGrantRequest{GrantId: w.grant.ID.String()})
		if err != nil || r.GetFlowsClosed() != 1 {
			t.Errorf("%v %v", r, err)
		}
		if err := <-done; protocol.CodeOf(err) != protocol.CodeOutcomeUnknown {
			t.Errorf("%v", err)
		}
		if !log().GetFinal() {
			t.Error("a call that was cut off may still bring an answer")
		}
	})
}

// Results are bounded; a cut is marked.
func TestInvokeIsBounded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.tools.answers(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, strings.Repeat("x", 5000)) })
		r, err := invoke(t.Context(), w.as(w.serverCert), w.invocation(nil, func(r *brokerv1.InvokeRequest) { r.MaxOutputBytes = 100 }))
		if err != nil || len(r.GetBody()) != 100 || !r.GetTruncated() || r.GetBodyBytes() != 5000 {
			t.Errorf("%d bytes, truncated=%v, of %d: %v", len(r.GetBody()), r.GetTruncated(), r.GetBodyBytes(), err)
		}
	})
}

package broker_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	gossh "golang.org/x/crypto/ssh"

	"bivouac/consul/consultest"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

const issuedPassword = "p4ss-of-the-engine/+0123"

// engines are what a server issues, for a broker whose authority is outside.
type engines struct {
	uses     []authority.Use
	from     []string
	returned int
	fails    error // of an issue
	signs    error // of a signature
	opened   error
	// signIn issues certificates of SSH.
	signIn func(u authority.Use) (gossh.Signer, error)
}

func (o *outside) Issue(ctx context.Context, u authority.Use, from *issued.From) (c issued.Credential, err error) {
	if err := o.Alive(ctx, u.Grant); err != nil {
		return c, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	e := &o.engines
	e.uses, e.from = append(e.uses, u), append(e.from, from.String())
	if e.fails != nil {
		return c, e.fails
	}
	if c, err = issued.Login("v-agent-reports", issuedPassword); err != nil {
		return c, err
	}
	if from.Engine == issued.SSH {
		signer, err := e.signIn(u)
		return issued.Credential{Signer: signer}, err
	}
	if from.Engine == issued.Transit {
		c = issued.Credential{SignFunc: func(context.Context, []byte) ([]byte, error) { return []byte("signed"), e.signs }}
	}
	c.ReturnFunc = func(context.Context) {
		o.mu.Lock()
		defer o.mu.Unlock()
		e.returned++
	}
	return c, nil
}

func (o *outside) Opened(context.Context, protocol.TenantID, string, *issued.From) error {
	return o.engines.opened
}

// reports is a call of a tool whose credential is issued.
func (w *world) reports(credential string) *brokerv1.InvokeRequest {
	return w.invocation(func(c *capability.Claims) { c.Destinations = []string{"reports"} }, func(r *brokerv1.InvokeRequest) {
		r.Tool.Destination, r.Tool.Credential = "reports", credential
	})
}

func (w *world) allowReports() {
	w.paths.Set(consultest.Allow("reports", "agent-assistant"), consultest.Allow("weather", "agent-assistant"))
}

// What an engine issues is made for the one action, under its grant, goes out as its
// block says, does not come back, and is given back whatever became of the call.
// INV-17.
func TestInvokeIssued(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server, e := w.as(w.serverCert), &w.outside.engines
		w.allowReports()
		var got []http.Header
		status := http.StatusOK
		w.tools.answers(func(out http.ResponseWriter, r *http.Request) {
			got = append(got, r.Header.Clone())
			user, password, _ := r.BasicAuth()
			out.WriteHeader(status)
			_, _ = out.Write([]byte(user + " " + password + " " + r.Header.Get("Authorization")))
			if r.Header.Get("Authorization") == "" {
				_, _ = out.Write([]byte(r.Header.Get("X-User") + " " + r.Header.Get("X-Key") + r.Header.Get("Signature")))
			}
		})
		r, err := invoke(t.Context(), server, w.reports("reports-db"))
		if err != nil || string(r.GetBody()) != "v-agent-reports [redacted] Basic [redacted]" || e.returned != 1 {
			t.Fatalf("%v %v, returned %d", r, err, e.returned)
		}
		if u := e.uses[0]; u.Grant != w.grant.ID || u.Tenant != w.tenant || u.Principal != w.grant.Principal || u.Agent != "assistant" || u.Credential != "reports-db" || e.from[0] != "database role reports-ro at database/" {
			t.Errorf("asked for %+v from %v", u, e.from)
		}
		status = http.StatusUnauthorized // the upstream does not know the user
		if r, err := invoke(t.Context(), server, w.reports("reports-db")); err != nil || r.GetHttpStatus() != http.StatusUnauthorized || strings.Contains(string(r.GetBody()), issuedPassword) || e.returned != 2 {
			t.Errorf("refused by the upstream: %v %v, returned %d", r, err, e.returned)
		}
		status = http.StatusOK
		r, err = invoke(t.Context(), server, w.reports("reports-sign"))
		if err != nil || got[2].Get("Signature") != "sig1=:c2lnbmVk:" || got[2].Get("Authorization") != "" || e.returned != 3 || string(r.GetBody()) != "   sig1=:[redacted]:" {
			t.Errorf("signed: %q %v %v", r.GetBody(), err, got[2])
		}
		r, err = invoke(t.Context(), server, w.reports("reports-split"))
		if err != nil || got[3].Get("X-Key") != issuedPassword || got[3].Get("Authorization") != "" || e.returned != 4 || string(r.GetBody()) != "  v-agent-reports [redacted]" {
			t.Errorf("in two headers: %q %v %v", r.GetBody(), err, got[3])
		}
		if strings.Contains(w.logged(), issuedPassword) {
			t.Error("the log holds what was issued")
		}
	})
}

// Where nothing is issued, or signed, nothing is sent, and the log knows it. INV-5. The
// twin is TestInvokeIssued.
func TestInvokeIssuedRefuses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server, e := w.as(w.serverCert), &w.outside.engines
		w.allowReports()
		missing := protocol.Errorf(protocol.CodeFailedPrecondition, "the credential is not issued: the role is missing")
		refused := func(what string, in *brokerv1.InvokeRequest, want protocol.Code) {
			t.Helper()
			_, err := invoke(t.Context(), server, in)
			if protocol.CodeOf(err) != want {
				t.Errorf("%s: %v", what, err)
			}
			if l := w.logOf(server, in); l.GetState() != brokerv1.CallState_CALL_STATE_ABSENT {
				t.Errorf("%s: the log says %v", what, l.GetState())
			}
		}
		e.fails = missing
		refused("no role", w.reports("reports-db"), protocol.CodeFailedPrecondition)
		e.fails, e.signs = nil, missing
		refused("no signature", w.reports("reports-sign"), protocol.CodeFailedPrecondition)
		if e.returned != 1 {
			t.Errorf("what was issued for a call that was not sent was returned %d times", e.returned)
		}
		before := len(e.uses)
		refused("stored elsewhere", w.reports("weather-key"), protocol.CodePolicyDenied)
		refused("without a grant", w.invocation(func(c *capability.Claims) { c.Destinations, c.Grant, c.SealedGrant = []string{"reports"}, "", nil }, func(r *brokerv1.InvokeRequest) {
			r.Tool.Destination, r.Tool.Credential = "reports", "reports-db"
		}), protocol.CodePermissionDenied)
		if len(e.uses) != before {
			t.Error("something was issued for a call that is not admitted")
		}
		e.signs = nil
		w.tools.answers(func(http.ResponseWriter, *http.Request) { // it ends while the call is out
			if _, err := w.outside.RevokeGrant(context.Background(), w.grant.ID); err != nil {
				t.Error(err)
			}
			w.broker.Sweep()
		})
		before = e.returned
		_, _ = invoke(t.Context(), server, w.reports("reports-db")) // its outcome is another test's
		if e.returned != before+1 {
			t.Error("what was issued was not returned when the grant ended")
		}
		refused("after the grant's end", w.reports("reports-db"), protocol.CodePermissionDenied)
	})
}

// Nothing is stored under a name that an engine issues; it is listed all the same, and
// whoever asks what a tool can reach hears what the authority says.
func TestIssuedIsListed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		w.allowReports()
		_, err := server.authority.PutCredential(t.Context(), &brokerv1.PutCredentialRequest{TenantId: w.tenant.String(), Name: "reports-db", Sealed: []byte("x")})
		if err := protocol.FromConnect(err); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "issued for each action") {
			t.Errorf("%v", err)
		}
		l, err := server.authority.ListCredentials(t.Context(), &brokerv1.ListCredentialsRequest{TenantId: w.tenant.String()})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range l.GetCredentials() {
			names = append(names, c.GetName())
			if is := strings.HasPrefix(c.GetName(), "reports-"); is != (c.GetUpdatedUs() == 0) || is && !slices.Contains(c.GetUsedBy(), "destination reports") {
				t.Errorf("%v", c)
			}
		}
		if !slices.Equal(names, []string{"provider-key", "reports-db", "reports-sign", "reports-split", "weather-key"}) {
			t.Errorf("%v", names)
		}
		reach := func() *brokerv1.Reach {
			tool := httpTool()
			tool.Destination, tool.Credential = "reports", "reports-db"
			r, err := server.broker.Reach(t.Context(), &brokerv1.ReachRequest{TenantId: w.tenant.String(), TenantName: "local", Agent: "assistant", DataBoundary: "personal", Tools: []*brokerv1.HttpTool{tool}})
			if err != nil {
				t.Fatal(err)
			}
			return r.GetTools()[0]
		}
		if r := reach(); !r.GetAdmitted() {
			t.Errorf("%v", r)
		}
		w.outside.engines.opened = protocol.Errorf(protocol.CodeFailedPrecondition, "the policy is missing")
		if r := reach(); r.GetAdmitted() || !strings.Contains(r.GetReason(), "the policy is missing") {
			t.Errorf("%v", r)
		}
	})
}

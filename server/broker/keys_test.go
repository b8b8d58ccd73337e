package broker_test

import (
	"net/http"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/protocol/brokerv1"
)

// A doctor sees a key that is missing, and one that its provider refuses, by names and
// by the last calls; it reads none. Both findings end with what mends them.
func TestDiagnoseKeys(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		found := func(route string) *brokerv1.Finding {
			t.Helper()
			res, err := server.broker.Diagnose(t.Context(), &brokerv1.DiagnoseRequest{})
			w.must(err)
			for _, f := range res.GetFindings() {
				if f.GetCheck() == "key."+route {
					return f
				}
			}
			return nil
		}
		bad := func(route, what, mend string) {
			t.Helper()
			if f := found(route); f.GetLevel() != "problem" || !strings.Contains(f.GetWhat(), what) || !strings.HasPrefix(f.GetMend(), mend) {
				t.Errorf("key.%s: %v, want a problem of %q with mend %q", route, f, what, mend)
			}
		}
		good := func(route, when string) {
			t.Helper()
			if f := found(route); f != nil {
				t.Errorf("%s: %v", when, f)
			}
		}
		hello := func() error {
			_, _, err := call(t.Context(), server, modelRequest(w.sign(w.claims(nil)), "main", "hello"))
			return err
		}
		put := func(tenant protocol.TenantID, name, value string) {
			t.Helper()
			_, err := server.authority.PutCredential(t.Context(), &brokerv1.PutCredentialRequest{TenantId: tenant.String(), Name: name, Sealed: authoritytest.Seal(t, w.keys, name, value)})
			w.must(err)
		}
		good("main", "before any call")
		bad("lent", `has no credential "lent-key"`, "bivouac credential set lent-key")
		put("ten_00000000000000000000000001", "lent-key", "sk-lent-0123456789")
		good("lent", "with the tenant's key")

		_, err := server.authority.DeleteCredential(t.Context(), &brokerv1.DeleteCredentialRequest{TenantId: w.tenant.String(), Name: "provider-key"})
		w.must(err)
		if err := hello(); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
			t.Errorf("without its key: %v", err)
		}
		bad("main", "the last call of tenant local failed", "bivouac credential set provider-key")
		good("claude", "a route that nobody called")
		put(w.tenant, "provider-key", "sk-not-the-right-one-99")
		good("main", "a new key that was not tried")
		if err := hello(); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
			t.Errorf("with a wrong key: %v", err)
		}
		bad("main", "refuses its key (status 401)", "bivouac credential set provider-key")
		put(w.tenant, "weather-key", toolKey)
		bad("main", "refuses its key", "bivouac credential set provider-key")
		put(w.tenant, "provider-key", modelKey)
		w.must(hello())
		good("main", "after a good call")

		w.next(func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(http.StatusForbidden) })
		if hello() == nil {
			t.Error("a refusal was none")
		}
		bad("main", "status 403", "bivouac credential set provider-key")
		w.next(func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(http.StatusBadRequest) })
		if hello() == nil {
			t.Error("a refusal was none")
		}
		bad("main", "status 403", "bivouac credential set provider-key") // 400 says nothing of a key
		w.must(hello())
		good("main", "a good call ends it")
	})
}

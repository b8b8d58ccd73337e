package server_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server"
	"bivouac/server/api/apiv1"
	"bivouac/server/brokerlink/brokerlinktest"
)

func TestReadyMeansThatATurnCanBeTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t)
		w.startServer()
		time.Sleep(time.Second)
		res, err := w.httpClient(false).Get("http://public:7400/healthz")
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("not alive: %v %v", res, err)
		}
		res.Body.Close()
		status, r := w.ready()
		if status != http.StatusServiceUnavailable || !strings.Contains(r.String(), "bivouac-broker") {
			t.Errorf("without a broker: %d %s", status, r)
		}
		w.startBroker()
		w.eventually("the feed alone is missing", func() bool {
			status, r := w.ready()
			return status == http.StatusServiceUnavailable && strings.Contains(r.String(), "feed") && !strings.Contains(r.String(), "cannot be reached")
		})
		w.startFeed()
		w.awaitReady()
		if status, _ := w.ready(); status != http.StatusOK {
			t.Errorf("ready, but status %d", status)
		}
		w.feed()
		time.Sleep(3 * time.Second)
		if status, r := w.ready(); status != http.StatusServiceUnavailable || !strings.Contains(r.String(), "old") {
			t.Errorf("with a feed that stopped: %d %s", status, r)
		}
	})
}

// What the README shows works as it stands: HTTP/1.1, JSON, curl's own content type.
func TestCurl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ask := func(authorization, contentType, path string) (int, string) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://public:7400"+path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", contentType)
			if authorization != "" {
				req.Header.Set("Authorization", authorization)
			}
			res, err := w.httpClient(false).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			if res.ProtoMajor != 1 {
				t.Errorf("over %s", res.Proto)
			}
			return res.StatusCode, string(body)
		}
		const whoami = "/bivouac.v1.PrincipalService/WhoAmI"
		for _, contentType := range []string{"application/json", "application/x-www-form-urlencoded"} {
			status, body := ask("Bearer "+w.token, contentType, whoami)
			if status != http.StatusOK || !strings.Contains(body, `"alice"`) || !strings.Contains(body, w.broker.Fingerprint()) {
				t.Errorf("%s: %d %s", contentType, status, body)
			}
		}
		unknown := "bvt_" + strings.Repeat("a", 52)
		for name, authorization := range map[string]string{
			"missing": "", "scheme": "Basic " + w.token, "malformed": "Bearer hello", "unknown": "Bearer " + unknown, "short": "Bearer " + w.token[:40],
		} {
			status, body := ask(authorization, "application/json", whoami)
			if status != http.StatusUnauthorized || !strings.Contains(body, "bivouac login") {
				t.Errorf("%s: %d %s", name, status, body)
			}
			if authorization != "" && strings.Contains(body, strings.TrimPrefix(authorization, "Bearer ")) {
				t.Errorf("%s: the answer repeats the token: %s", name, body)
			}
		}
		if status, body := ask("Bearer "+w.token, "application/json", "/bivouac.v1.PrincipalService/Nothing"); status != http.StatusNotFound || !strings.Contains(body, "no method") {
			t.Errorf("an absent method: %d %s", status, body)
		}
	})
}

func TestPrincipals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, alice := t.Context(), w.as(w.token)
		bob, bobP := w.add(alice, "", "bob", false)
		carol, _ := w.add(alice, "other", "carol", true)
		who, err := carol.Principals.WhoAmI(ctx, &apiv1.WhoAmIRequest{})
		if err != nil || who.GetPrincipal().GetTenantName() != "other" || !who.GetPrincipal().GetAdmin() {
			t.Fatalf("%v %v", who, err)
		}
		for name, c := range map[string]struct {
			err  func() error
			code protocol.Code
		}{
			"a user adds": {func() error {
				_, err := bob.Principals.AddPrincipal(ctx, &apiv1.AddPrincipalRequest{Name: "x"})
				return err
			}, protocol.CodePermissionDenied},
			"an admin names another tenant": {func() error {
				_, err := carol.Principals.AddPrincipal(ctx, &apiv1.AddPrincipalRequest{Name: "x", Tenant: "local"})
				return err
			}, protocol.CodePermissionDenied},
			"the name is taken": {func() error {
				_, err := alice.Principals.AddPrincipal(ctx, &apiv1.AddPrincipalRequest{Name: "bob"})
				return err
			}, protocol.CodeAlreadyExists},
			"the name is none": {func() error {
				_, err := alice.Principals.AddPrincipal(ctx, &apiv1.AddPrincipalRequest{Name: "Bob Smith"})
				return err
			}, protocol.CodeInvalidArgument},
			"the kind is none": {func() error {
				_, err := alice.Principals.AddPrincipal(ctx, &apiv1.AddPrincipalRequest{Name: "x", Kind: "robot"})
				return err
			}, protocol.CodeInvalidArgument},
			"a user disables": {func() error {
				_, err := bob.Principals.DisablePrincipal(ctx, &apiv1.DisablePrincipalRequest{PrincipalId: bobP.GetId()})
				return err
			}, protocol.CodePermissionDenied},
		} {
			if err := c.err(); protocol.CodeOf(err) != c.code {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := carol.Principals.AddPrincipal(ctx, &apiv1.AddPrincipalRequest{Name: "dave", Tenant: "other"}); err != nil {
			t.Errorf("an admin in its own tenant: %v", err)
		}
		if _, err := alice.Principals.DisablePrincipal(ctx, &apiv1.DisablePrincipalRequest{PrincipalId: bobP.GetId()}); err != nil {
			t.Fatal(err)
		}
		if _, err := bob.Principals.WhoAmI(ctx, &apiv1.WhoAmIRequest{}); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
			t.Errorf("a disabled principal: %v", err)
		}
	})
}

func TestOneServerADirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.config
		c.PublicListener, c.RunnerListener = brokerlinktest.NewPipe("second"), brokerlinktest.NewPipe("second runners")
		second, err := server.New(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := second.Run(t.Context()); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
			t.Errorf("a second server on one directory: %v", err)
		}
		if err := w.stop(); err != nil {
			t.Errorf("the first one stopped with %v", err)
		}
		w.startServer()
		w.awaitReady()
	})
}

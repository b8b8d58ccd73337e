package broker_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/secret"
	"bivouac/server/capability"
)

// calendar is a provider with its authorization server, which rotates and repeats
// everything it gets.
type calendar struct {
	n       int    // tokens given
	good    string // refresh token
	valid   string // access token
	touched int    // requests that were let in
	asked   int
	seen    func() []string
}

func refreshCanary(n int) string { return fmt.Sprintf("refresh-canary-%02d", n) }
func accessCanary(n int) string  { return fmt.Sprintf("access-canary-%02d", n) }

func (c *calendar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/token" {
		all := c.seen()
		form, _ := url.ParseQuery(strings.SplitN(all[len(all)-1], " ", 3)[2])
		w.Header().Set("Content-Type", "application/json")
		if r.URL.RawQuery != "" || form.Get("refresh_token") != c.good {
			w.WriteHeader(400)
			fmt.Fprintf(w, `{"error":"invalid_grant","error_description":"%s"}`, form.Get("refresh_token"))
			return
		}
		c.n++
		c.good, c.valid = refreshCanary(c.n), accessCanary(c.n)
		fmt.Fprintf(w, `{"access_token":%q,"refresh_token":%q,"token_type":"Bearer","expires_in":600}`, c.valid, c.good)
		return
	}
	c.asked++
	if r.Header.Get("Authorization") != "Bearer "+c.valid {
		w.WriteHeader(http.StatusUnauthorized)
	} else {
		c.touched++
	}
	fmt.Fprintf(w, `{"as":%q,"behind":%q,"before":%q}`, r.Header.Get("Authorization"), c.good, refreshCanary(c.n-1))
}

// A tool gets an access token in the place of the refresh token that is stored; what a
// server replaces is stored; one that the upstream refuses is got anew and the call sent
// once more, where its class lets that be; nothing of any token is in an answer, an
// error or the log. INV-5, INV-17.
func TestToolsWithOAuth(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server, cal := w.as(w.serverCert), &calendar{good: refreshCanary(0), seen: w.tools.requests}
		w.tools.answers(func(out http.ResponseWriter, r *http.Request) { cal.ServeHTTP(out, r) })
		store := func(value string) {
			w.must(w.keys.PutCredential(t.Context(), w.tenant, "calendar", authoritytest.Seal(t, w.keys, "calendar", value)))
		}
		store(refreshCanary(0))
		g := authority.Grant{ID: newID[protocol.GrantKind](), Tenant: w.tenant, Principal: w.grant.Principal, Agent: "assistant", Credentials: []string{"calendar"}}
		sealed, err := w.keys.CreateGrant(t.Context(), g)
		w.must(err)
		call := func(change func(*brokerv1.HttpTool)) (*brokerv1.InvokeResponse, error) {
			r, err := invoke(t.Context(), server, w.invocation(func(c *capability.Claims) {
				c.Destinations, c.Grant, c.SealedGrant = []string{"calendar"}, g.ID, sealed
			}, func(r *brokerv1.InvokeRequest) {
				r.Tool.Destination, r.Tool.Path, r.Tool.Credential = "calendar", "/events?q={city}", "calendar"
				change(r.Tool)
			}))
			if said := fmt.Sprint(r, err); strings.Contains(said, "canary") {
				t.Errorf("a token came back: %s", said)
			}
			return r, err
		}
		stored := func() string {
			v, err := w.keys.Mint(t.Context(), authority.Use{Grant: g.ID, Sealed: sealed, Tenant: w.tenant, Principal: g.Principal, Agent: "assistant", Credential: "calendar"})
			w.must(err)
			return v.Reveal()
		}
		read := func(h *brokerv1.HttpTool) { h.Reads = true }
		opaque := func(h *brokerv1.HttpTool) { h.Method, h.Path, h.Body = "POST", "/events", []string{"city"} }
		if r, err := call(read); err != nil || r.GetHttpStatus() != 200 || cal.n != 1 || stored() != refreshCanary(1) {
			t.Errorf("%v %v, %d tokens", r, err, cal.n)
		}
		if r, err := call(opaque); err != nil || r.GetHttpStatus() != 200 || cal.n != 1 {
			t.Errorf("%v %v, %d tokens", r, err, cal.n)
		}
		// The upstream takes the token back before its end.
		time.Sleep(time.Minute)
		cal.valid, cal.asked = "none", 0
		if r, err := call(read); err != nil || r.GetHttpStatus() != 200 || cal.n != 2 || cal.asked != 2 || stored() != refreshCanary(2) {
			t.Errorf("%v %v, %d tokens, asked %d times", r, err, cal.n, cal.asked)
		}
		time.Sleep(time.Minute)
		cal.valid, cal.asked, cal.touched = "none", 0, 0
		if r, err := call(opaque); err != nil || r.GetHttpStatus() != 401 || cal.n != 2 || cal.asked != 1 {
			t.Errorf("an opaque call: %v %v, %d tokens, asked %d times", r, err, cal.n, cal.asked)
		}
		if r, err := call(opaque); err != nil || r.GetHttpStatus() != 200 || cal.n != 3 || cal.touched != 1 {
			t.Errorf("the next one: %v %v, %d tokens", r, err, cal.n)
		}
		// However often it is replaced, what counts now is never shown.
		for range 7 {
			time.Sleep(15 * time.Second)
			cal.valid = "none"
			if r, err := call(read); err != nil || r.GetHttpStatus() != 200 {
				t.Errorf("%v %v", r, err)
			}
		}
		// The person takes the authorisation back at the provider.
		time.Sleep(20 * time.Minute)
		cal.good, cal.asked = "none", 0
		_, err = call(read)
		if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || protocol.DetailOf(err) != protocol.DetailCredentialRefused || !strings.Contains(err.Error(), "bivouac credential set calendar") || cal.asked != 0 {
			t.Errorf("%v, asked %d times", err, cal.asked)
		}
		cal.good = refreshCanary(50)
		store(refreshCanary(50))
		if r, err := call(read); err != nil || r.GetHttpStatus() != 200 {
			t.Errorf("after it was stored anew: %v %v", r, err)
		}
		// A revoked grant gets no token, though there is one in memory. INV-13.
		_, err = w.keys.RevokeGrant(t.Context(), g.ID)
		w.must(err)
		if _, err := call(read); protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("after its end: %v", err)
		}
		for n := range 60 {
			for _, text := range []string{refreshCanary(n), accessCanary(n)} {
				if v, _ := secret.New(text); secret.NewRedactor(v).Found(w.logged()) {
					t.Fatalf("the log holds %s", text)
				}
			}
		}
	})
}

// What broker.hcl says of OAuth is held against the rest of it.
func TestOAuthInTheFile(t *testing.T) {
	file := func(block, credential string) string {
		return "oauth2 \"calendar\" {\n" + block + "\n}\ndestination \"d\" {\n  url = \"https://d.example\"\n  credential \"" + credential + "\" {}\n}\n"
	}
	good := "token_url = \"https://id.example/token\"\nclient_id = \"bivouac\"\n"
	for _, text := range []string{file(good, "calendar"), file(good+"client_secret = \"app\"\nclient_auth = \"post\"", "calendar"),
		file(good+"grant = \"client_credentials\"\nscopes = [\"a\"]\naudience = \"x\"", "calendar")} {
		if err := parse(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		file("client_id = \"x\"", "calendar"):                                            "token_url",
		file("token_url = \"http://id.example\"\nclient_id = \"x\"", "calendar"):         "clear text",
		file("token_url = \"https://id.example\"\nclient_id = \"\"", "calendar"):         "client_id",
		file(good+"grant = \"password\"", "calendar"):                                    "use \"refresh_token\"",
		file(good+"scopes = [\"a\"]", "calendar"):                                        "scopes and audience are for",
		file(good+"grant = \"client_credentials\"\nclient_secret = \"app\"", "calendar"): "the credential itself is the secret",
		file(good+"grant = \"client_credentials\"\nscopes = [\"a b\"]", "calendar"):      "each is one word",
		file(good+"client_auth = \"jwt\"", "calendar"):                                   "client_auth",
		file(good+"client_secret = \"calendar\"", "calendar"):                            "a credential of OAuth itself",
		file(good, "other"): "no destination and no model uses",
		file(good, "calendar") + "oauth2 \"calendar\" {\n" + good + "}\n": "stands twice",
	} {
		if err := parse(text); protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func parse(text string) error {
	_, err := broker.ParseConfig([]byte(text), "broker.hcl")
	return err
}

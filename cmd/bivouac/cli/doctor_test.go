package cli

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/finding"
)

// The doctor trusts the authority that the login names, and names the flag where it
// names none.
func TestDoctorTrustsTheLoginsAuthority(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	for _, c := range []struct {
		ca    string
		fine  bool
		check string
	}{{ca, true, ""}, {"", false, "server.certificate"}} {
		a, r := &app{login: login{Server: s.URL, CA: c.ca}}, finding.From("here")
		if fine := a.examineWay(t.Context(), r, u); fine != c.fine {
			t.Errorf("with the authority %v: %+v", c.ca != "", r.All)
		}
		if last := r.All[len(r.All)-1]; c.check != "" && (last.Check != c.check || !strings.Contains(last.Mend, "--ca")) {
			t.Errorf("%+v", last)
		}
	}
}

// A certificate for another name is met with one for this name, never with a login in
// the clear, which would be refused; with the right name all is well.
func TestDoctorKnowsAnotherNamesCertificate(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	for host, fine := range map[string]bool{"127.0.0.1": true, "localhost": false} {
		u, err := url.Parse(strings.Replace(s.URL, "127.0.0.1", host, 1))
		if err != nil {
			t.Fatal(err)
		}
		a, r := &app{login: login{Server: u.String(), CA: ca}}, finding.From("here")
		if got := a.examineWay(t.Context(), r, u); got != fine {
			t.Errorf("%s: %+v", host, r.All)
		}
		if last := r.All[len(r.All)-1]; !fine && (last.Check != "server.certificate" || !strings.Contains(last.Mend, "subjectAltName=DNS:localhost") || strings.Contains(last.Mend, "http://")) {
			t.Errorf("%+v", last)
		}
	}
	far, here := &url.URL{Scheme: "https", Host: "203.0.113.10:7400"}, &url.URL{Scheme: "https", Host: "127.0.0.1:7400"}
	if other := otherScheme(far); other != "" {
		t.Errorf("beyond this machine: %s", other)
	}
	if other := otherScheme(here); !strings.Contains(other, "http://127.0.0.1:7400") {
		t.Errorf("on this machine: %q", other)
	}
}

// A server that had its address from the bivouac dev of this machine is started by that,
// whole; another one where it runs.
func TestDoctorKnowsWhatStartsTheServer(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	a := &app{config: filepath.Join(t.TempDir(), "login")}
	if err := writePrivate(filepath.Join(defaultDevDir(), "addresses.json"), []byte(`{"public":"127.0.0.1:7400","runner":"203.0.113.10:7401"}`)); err != nil {
		t.Fatal(err)
	}
	if got := a.startOf("127.0.0.1:7400"); got != "bivouac dev --runner 203.0.113.10:7401" {
		t.Errorf("dev's: %s", got)
	}
	if got := a.startOf("203.0.113.10:7400"); !strings.Contains(got, "bivouac-server on its machine") {
		t.Errorf("another's: %s", got)
	}
}

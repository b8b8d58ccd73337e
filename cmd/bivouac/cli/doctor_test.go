package cli

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
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

package client

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

// What is not the server's is neither an empty folder nor something that was deleted;
// what is the server's is.
func TestAbsenceIsTheServers(t *testing.T) {
	for body, kind := range map[string]Kind{
		`{"errors":[]}`:                     "",
		`{"message":"no Route matched"}`:    Away,
		`<html>default backend</html>`:      Away,
		`{"errors":["no route","matched"]}`: Invalid,
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, body)
		})
		names, err := c.List(t.Context(), as(t), "x/metadata/")
		if KindOf(err) != kind || len(names) > 0 {
			t.Errorf("a list of %s: %v %v", body, names, err)
		}
		if err := c.Delete(t.Context(), as(t), "x/metadata/y"); KindOf(err) != kind {
			t.Errorf("a deletion, %s: %v", body, err)
		}
	}
	for body, kind := range map[string]Kind{
		framed(`{"keys":["a"]}`): "", framed(`{"keys":null}`): Away, framed(`{}`): Away, framed(`null`): Away, `{}`: Away, `{"keys":["a"]}`: Away,
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) })
		if names, err := c.List(t.Context(), as(t), "x/metadata/"); KindOf(err) != kind || (err == nil) != (len(names) == 1) {
			t.Errorf("a list of %s: %v %v", body, names, err)
		}
	}
}

// The cluster is the whole server's, in whatever namespace the broker is.
func TestCluster(t *testing.T) {
	for body, want := range map[string]struct {
		id   string
		kind Kind
	}{
		`{"type":"shamir","initialized":true,"sealed":false,"cluster_id":"c-1"}`: {"c-1", ""},
		`{"type":"shamir","initialized":true,"sealed":true}`:                     {"", Sealed},
		`{"type":"shamir","initialized":false,"sealed":true}`:                    {"", Away},
		`{"type":"shamir","initialized":true,"sealed":false}`:                    {"", Away},
		`{}`:                   {"", Away},
		`{"cluster_id":"c-1"}`: {"", Away},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/sys/seal-status" || r.Header.Get("X-Vault-Namespace") != "" || r.Header.Get("X-Vault-Token") != "" {
				t.Error(r.URL, r.Header)
			}
			fmt.Fprint(w, body)
		}))
		t.Cleanup(s.Close)
		c, err := New(Config{Address: s.URL, Namespace: "team"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		if id, err := c.Cluster(t.Context()); id != want.id || KindOf(err) != want.kind || (err == nil) != (id != "") {
			t.Errorf("%s: %q %v", body, id, err)
		}
	}
}

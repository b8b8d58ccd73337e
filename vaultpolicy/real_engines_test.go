//go:build linux

package vaultpolicy

import (
	"strings"
	"testing"

	"bivouac/edge/finding"
	"bivouac/server/broker/issued"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// What an admin's engines lack is found by name, each alone; sound ones have nothing
// to find.
func TestExamineEngines(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		pki, _ := x.pki(t, issued.KeyEC)
		transit := x.transit(t, issued.Ed25519)
		db := (&issued.From{Engine: issued.Database, Mount: x.mount(t, issued.Database), Role: "reports-ro"}).WithDefaults()
		x.write(t, db.RolePath(), map[string]any{"db_name": "pg", "creation_statements": madeUsers})
		x.scope.Issued = map[string]*issued.From{"a-db": db, "b-cert": pki, "c-sign": transit}
		look := func() *finding.Report {
			r := finding.From("here")
			File{Config: x.cfg, Scope: x.scope}.ExamineEngines(t.Context(), r, x.client, x.token)
			return r
		}
		if r := look(); len(worst(r)) > 0 || len(r.All) != 1 {
			t.Fatalf("sound engines: %+v", r.All)
		}
		for name, c := range map[string]struct {
			of     string
			change func(*issued.From)
			want   string
		}{
			"a role that is missing":   {"a-db", func(f *issued.From) { f.Role = "none" }, "the database role none at " + db.Mount + "/ is missing"},
			"an engine that is":        {"a-db", func(f *issued.From) { f.Mount = "nowhere" }, "no database engine at nowhere/"},
			"another type of key":      {"b-cert", func(f *issued.From) { f.KeyType = issued.KeyRSA }, `keys of type "ec"`},
			"a certificate's role":     {"b-cert", func(f *issued.From) { f.Role = "none" }, "pki role none"},
			"a key that is missing":    {"c-sign", func(f *issued.From) { f.Key = "none" }, "transit key none"},
			"a key of another kind":    {"c-sign", func(f *issued.From) { f.Algorithm = issued.RSAPKCS1 }, "does not sign with rsa-v1_5-sha256"},
			"a key that can be taken":  {"c-sign", func(f *issued.From) { f.Key = "loose" }, "can be exported"},
			"a role that keeps it all": {"b-cert", func(f *issued.From) { f.Role = "keeps" }, "keeps every certificate"},
		} {
			x.write(t, transit.Mount+"/keys/loose", map[string]any{"type": "ed25519", "exportable": true})
			x.write(t, pki.Mount+"/roles/keeps", map[string]any{"allow_any_name": true, "key_type": "ec", "no_store": false})
			changed := *x.scope.Issued[c.of]
			c.change(&changed)
			whole := x.scope.Issued[c.of]
			x.scope.Issued[c.of] = &changed
			if found := worst(look()); len(found) != 1 || !strings.Contains(found[0], c.want) {
				t.Errorf("%s: %v", name, found)
			}
			x.scope.Issued[c.of] = whole
		}
		if r := look(); len(worst(r)) > 0 {
			t.Errorf("in the end: %v", worst(r))
		}
	})
}

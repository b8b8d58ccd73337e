package issued

import (
	"errors"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

const tenant = "ten_01m8n7mng1x16gsh7mgchdm30b"

// What a file says wrongly is named, all of it; what it says rightly is taken.
func TestFromProblems(t *testing.T) {
	for name, c := range map[string]struct {
		from From
		want []string // none: it is right
	}{
		"a database":          {From{Engine: Database, Role: "reports-ro"}, nil},
		"another mount":       {From{Engine: Database, Mount: "team/pg", Role: "Reports.ro_2", Tenants: []string{tenant}}, nil},
		"no engine":           {From{Engine: "postgres", Role: "x"}, []string{"not known", "database"}},
		"no role":             {From{Engine: Database}, []string{"role is missing"}},
		"a pattern for role":  {From{Engine: Database, Role: "*"}, []string{`role "*"`}},
		"a way out of it":     {From{Engine: Database, Role: "../config/pg"}, []string{"role"}},
		"a quote in the role": {From{Engine: Database, Role: `x" { capabilities = ["sudo"] } #`}, []string{"role"}},
		"a mount of patterns": {From{Engine: Database, Mount: "+", Role: "x"}, []string{`mount "+"`}},
		"slashes":             {From{Engine: Database, Mount: "/database/", Role: "x"}, []string{"slash"}},
		"the server itself":   {From{Engine: Database, Mount: "sys", Role: "x"}, []string{"the server's own"}},
		"its logins":          {From{Engine: Database, Mount: "auth/token", Role: "x"}, []string{"the server's own"}},
		"tenants by name":     {From{Engine: Database, Role: "x", Tenants: []string{"acme"}}, []string{"tenants"}},
		"two at once":         {From{Engine: Database, Mount: "sys"}, []string{"role is missing", "the server's own"}},
	} {
		problems := c.from.WithDefaults().Problems()
		if len(problems) != 0 != (len(c.want) != 0) {
			t.Errorf("%s: %v", name, problems)
		}
		for _, w := range c.want {
			if text := errors.Join(problems...).Error(); !strings.Contains(text, w) {
				t.Errorf("%s: %q is not in %s", name, w, text)
			}
		}
	}
}

// One name is one credential in the whole file.
func TestNamed(t *testing.T) {
	a := (&From{Engine: Database, Role: "a"}).WithDefaults()
	again, b := *a, *a
	again.Range.Start.Line, b.Role = 7, "b"
	for name, c := range map[string]struct {
		second *From
		good   bool
	}{"the same, elsewhere": {&again, true}, "another role": {&b, false}, "a stored one": {nil, false}} {
		n := Named{}
		if err := n.Add("x", a); err != nil {
			t.Fatal(err)
		}
		if err := n.Add("x", c.second); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
		if err := n.Add("y", c.second); err != nil {
			t.Errorf("%s, by another name: %v", name, err)
		}
	}
}

// Only the tenants that are named may use it; without names, every one.
func TestFor(t *testing.T) {
	f := From{Tenants: []string{tenant}}
	if !f.For(tenant) || f.For("ten_01m8n7mng1x16gsh7mgchdm30c") || !(&From{}).For("ten_01m8n7mng1x16gsh7mgchdm30c") {
		t.Error("another tenant may use it, or its own may not")
	}
}

// INV-17: a user and password are one value in a header, and both forms are hidden.
func TestLogin(t *testing.T) {
	c, err := Login("v-reports-Xy", "p4ss-word-0123")
	if err != nil || c.Value.Reveal() != "di1yZXBvcnRzLVh5OnA0c3Mtd29yZC0wMTIz" || len(c.Hidden()) != 2 || c.IsZero() {
		t.Errorf("%v", err)
	}
	for _, bad := range [][2]string{{"user", "short"}, {"user", "line\nend-012345"}, {"us:er", "p4ss-word-0123"}, {"", "p4ss-word-0123"}, {"a\r\nb", "p4ss-word-0123"}} {
		if _, err := Login(bad[0], bad[1]); protocol.CodeOf(err) == "" {
			t.Errorf("%q is taken", bad[0])
		}
	}
}

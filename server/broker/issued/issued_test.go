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
		"a database":           {From{Engine: Database, Role: "reports-ro"}, nil},
		"another mount":        {From{Engine: Database, Mount: "team/pg", Role: "Reports.ro_2", Tenants: []string{tenant}}, nil},
		"no engine":            {From{Engine: "postgres", Role: "x"}, []string{"not known", "database"}},
		"no role":              {From{Engine: Database}, []string{"role is missing"}},
		"a pattern for role":   {From{Engine: Database, Role: "*"}, []string{`role "*"`}},
		"a way out of it":      {From{Engine: Database, Role: "../config/pg"}, []string{"role"}},
		"a quote in the role":  {From{Engine: Database, Role: `x" { capabilities = ["sudo"] } #`}, []string{"role"}},
		"a mount of patterns":  {From{Engine: Database, Mount: "+", Role: "x"}, []string{`mount "+"`}},
		"slashes":              {From{Engine: Database, Mount: "/database/", Role: "x"}, []string{"slash"}},
		"the server itself":    {From{Engine: Database, Mount: "sys", Role: "x"}, []string{"the server's own"}},
		"its logins":           {From{Engine: Database, Mount: "auth/token", Role: "x"}, []string{"the server's own"}},
		"tenants by name":      {From{Engine: Database, Role: "x", Tenants: []string{"acme"}}, []string{"tenants"}},
		"two headers":          {From{Engine: Database, Role: "x", UsernameHeader: "X-User", PasswordHeader: "X-Key"}, nil},
		"one header of two":    {From{Engine: Database, Role: "x", UsernameHeader: "X-User"}, []string{"belong together"}},
		"one header for both":  {From{Engine: Database, Role: "x", UsernameHeader: "X-User", PasswordHeader: "x-user"}, []string{"must be two"}},
		"the host's header":    {From{Engine: Database, Role: "x", UsernameHeader: "Host", PasswordHeader: "X-Key"}, []string{"Host"}},
		"a certificate":        {From{Engine: PKI, Role: "agents", CommonName: "{agent}.agents.example", TTL: "30s", KeyType: KeyRSA}, nil},
		"no common name":       {From{Engine: PKI, Role: "agents"}, []string{"common_name is missing"}},
		"a name of nothing":    {From{Engine: PKI, Role: "agents", CommonName: "{team}.example"}, []string{"{team} stands for nothing"}},
		"a name of a tenant":   {From{Engine: PKI, Role: "agents", CommonName: "{agent}.{tenant}.agents.example"}, nil},
		"two names in one":     {From{Engine: PKI, Role: "agents", CommonName: "{tenant}-{agent}.example"}, []string{"put a dot between"}},
		"a name with a quote":  {From{Engine: PKI, Role: "agents", CommonName: `a"b`}, []string{"common_name"}},
		"a name of patterns":   {From{Engine: PKI, Role: "agents", CommonName: "*"}, []string{"common_name"}},
		"a day":                {From{Engine: PKI, Role: "agents", CommonName: "a", TTL: "24h"}, []string{`ttl "24h"`}},
		"no time":              {From{Engine: PKI, Role: "agents", CommonName: "a", TTL: "soon"}, []string{`ttl "soon"`}},
		"a key of no type":     {From{Engine: PKI, Role: "agents", CommonName: "a", KeyType: "dsa"}, []string{`key_type "dsa"`}},
		"a signature":          {From{Engine: Transit, Key: "partner", Algorithm: HMACSHA256, KeyID: "https://me.example/keys#1"}, nil},
		"no key":               {From{Engine: Transit}, []string{"key is missing"}},
		"another algorithm":    {From{Engine: Transit, Key: "k", Algorithm: "md5"}, []string{`algorithm "md5"`}},
		"a key id of quotes":   {From{Engine: Transit, Key: "k", KeyID: `a"b`}, []string{"key_id"}},
		"a role for transit":   {From{Engine: Transit, Key: "k", Role: "r"}, []string{"role has no meaning there"}},
		"a key for a database": {From{Engine: Database, Role: "r", Key: "k"}, []string{"key has no meaning there"}},
		"two at once":          {From{Engine: Database, Mount: "sys"}, []string{"role is missing", "the server's own"}},
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

// Agents of one name of two tenants get two names; a block that would give them one is
// refused, and one tenant needs no more than its agents.
func TestTenantsAreApart(t *testing.T) {
	const a, b = "ten_01arz3ndektsv4rrffq69g5fav", "ten_01arz3ndektsv4rrffq69g5faw"
	for name, tc := range map[string]struct {
		common       string
		block, vault []string
		refused      bool
	}{
		"one tenant":                       {"{agent}.agents.example", nil, []string{a}, false},
		"narrowed to one":                  {"{agent}.agents.example", []string{a}, []string{a, b}, false},
		"two of the vault":                 {"{agent}.agents.example", nil, []string{a, b}, true},
		"two of the block":                 {"{agent}.agents.example", []string{a, b}, []string{a, b}, true},
		"two, with the tenant":             {"{agent}.{tenant}.agents.example", nil, []string{a, b}, false},
		"two, with the principal":          {"{agent}.{principal}", nil, []string{a, b}, false},
		"two, of one name that is for all": {"bivouac.agents.example", nil, []string{a, b}, false},
	} {
		f := (&From{Engine: PKI, Role: "agents", CommonName: tc.common, Tenants: tc.block}).WithDefaults()
		err := f.Apart(tc.vault)
		if (err != nil) != tc.refused || err != nil && !strings.Contains(err.Error(), "{agent}.{tenant}.agents.example") {
			t.Errorf("%s: %v", name, err)
		}
		if problems := f.Problems(); (len(problems) > 0) != (len(tc.block) > 1) {
			t.Errorf("%s: %v", name, problems)
		}
	}
	f := From{CommonName: "{agent}.{tenant}.x"}
	one, err := f.NameFor("acme", "assistant", "prn")
	if two, _ := f.NameFor("umbrella", "assistant", "prn"); err != nil || one != "assistant.acme.x" || two != "assistant.umbrella.x" {
		t.Errorf("%q and %q, %v", one, two, err)
	}
	if n, err := f.NameFor("", "assistant", "prn"); err == nil {
		t.Errorf("nobody's name is %q", n)
	}
}

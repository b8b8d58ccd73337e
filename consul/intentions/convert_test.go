package intentions

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"bivouac/consul"
	"bivouac/consul/refused"
)

func decide(t *testing.T, r *consul.Request, all ...map[string]any) consul.Decision {
	t.Helper()
	body, err := json.Marshal(map[string]any{weather: all})
	if err != nil {
		t.Fatal(err)
	}
	set, err := setOf(weather, body)
	if err != nil {
		t.Fatal(err)
	}
	return set.Silent(silent).Decide(agent, weather, r)
}

func with(i map[string]any, field string, value any) map[string]any {
	i[field] = value
	return i
}

func permit(action string, http map[string]any) map[string]any {
	return map[string]any{"Action": action, "HTTP": http}
}

// What is not understood to the last field allows nothing, and says what it was; the same
// without it does.
func TestNotUnderstoodDenies(t *testing.T) {
	allow := func() map[string]any { return l4(agent, weather, "allow") }
	get := map[string]any{"PathPrefix": "/", "Methods": []string{"GET"}}
	r := &consul.Request{Method: "GET", Path: "/v1", Header: http.Header{"X-Env": {"test"}}}
	for name, good := range map[string]map[string]any{
		"an allow": allow(), "empty new fields": with(with(allow(), "SourceSamenessGroup", ""), "Tomorrow", map[string]any{}),
		"meta": with(allow(), "Meta", map[string]string{"owner": "ops"}), "permissions": l7(agent, weather, permit("allow", get)),
		"a header": l7(agent, weather, permit("allow", map[string]any{"Header": []any{map[string]any{"Name": "x-env", "Exact": "test"}}})),
	} {
		if d := decide(t, r, good); !d.Allowed {
			t.Errorf("%s: %s", name, d.Reason)
		}
	}
	for name, tc := range map[string]struct {
		bad  map[string]any
		want string
	}{
		"peer":               {with(allow(), "SourcePeer", "east"), `peer "east"`},
		"namespace":          {with(allow(), "SourceNS", "team"), "namespaces"},
		"its namespace":      {with(allow(), "DestinationNS", "team"), "namespaces"},
		"partition":          {with(allow(), "SourcePartition", "p1"), "partitions"},
		"sameness group":     {with(allow(), "SourceSamenessGroup", "g"), "sameness group"},
		"type":               {with(allow(), "SourceType", "external"), "external"},
		"unknown field":      {with(allow(), "OnlyOnSundays", true), "OnlyOnSundays"},
		"action":             {with(allow(), "Action", "log"), `"log"`},
		"no action":          {with(allow(), "Action", ""), "neither"},
		"both":               {with(l7(agent, weather, permit("allow", get)), "Action", "allow"), "action and permissions"},
		"jwt":                {l7(agent, weather, with(permit("allow", get), "JWT", map[string]any{"Providers": []any{map[string]any{"Name": "okta"}}})), "JWT"},
		"jwt of all":         {with(allow(), "JWT", map[string]any{"Providers": []any{map[string]any{"Name": "okta"}}}), "JWT"},
		"no http":            {l7(agent, weather, map[string]any{"Action": "allow"}), "not about HTTP"},
		"unknown in perm.":   {l7(agent, weather, with(permit("allow", get), "TCP", map[string]any{"Port": 1})), "TCP"},
		"unknown in http":    {l7(agent, weather, permit("allow", map[string]any{"PathPrefix": "/", "Query": "x"})), "Query"},
		"unknown in header":  {l7(agent, weather, permit("allow", map[string]any{"Header": []any{map[string]any{"Name": "a", "Present": true, "Glob": "x"}}})), "Glob"},
		"empty http":         {l7(agent, weather, permit("allow", map[string]any{})), "not about HTTP"},
		"two paths":          {l7(agent, weather, permit("allow", map[string]any{"PathPrefix": "/", "PathExact": "/a"})), "more than one path"},
		"regex":              {l7(agent, weather, permit("allow", map[string]any{"PathRegex": "/("})), "missing closing"},
		"header asks none":   {l7(agent, weather, permit("allow", map[string]any{"Header": []any{map[string]any{"Name": "a"}}})), "exactly one"},
		"other destination":  {l4(agent, "elsewhere", "allow"), "another destination"},
		"wildcard with l7":   {l7(agent, "*", permit("allow", get)), "exact destination"},
		"a name with a star": {l4("agent-*", weather, "allow"), "stands alone"},
	} {
		// A wider allow beside it opens nothing.
		d := decide(t, r, tc.bad, l4("*", "*", "allow"))
		if d.Allowed || !strings.Contains(d.Reason, tc.want) {
			t.Errorf("%s: allowed=%v because %s, want %q", name, d.Allowed, d.Reason, tc.want)
		}
	}
	if d := decide(t, r, allow(), l4(agent, weather, "deny")); d.Allowed {
		t.Errorf("two about one pair: %s", d.Reason)
	}
}

// Nothing, and the deny under everything, leave a pair that one command opens; a deny that
// somebody wrote about it does not.
func TestWhoIsToMend(t *testing.T) {
	for name, tc := range map[string]struct {
		all  []map[string]any
		mend bool
	}{
		"nothing":             {nil, true},
		"the deny under all":  {[]map[string]any{l4("*", "*", "deny")}, true},
		"others are allowed":  {[]map[string]any{l4("web", weather, "allow"), l4("*", "*", "deny")}, true},
		"denied by name":      {[]map[string]any{l4(agent, weather, "deny")}, false},
		"all denied there":    {[]map[string]any{l4("*", weather, "deny")}, false},
		"denied from there":   {[]map[string]any{l4(agent, "*", "deny")}, false},
		"not understood":      {[]map[string]any{with(l4(agent, weather, "allow"), "SourcePeer", "x")}, false},
		"no permission of it": {[]map[string]any{l7(agent, weather, permit("deny", map[string]any{"PathPrefix": "/"}))}, false},
	} {
		d := decide(t, &consul.Request{Method: "GET", Path: "/"}, tc.all...)
		p, ok := refused.Parse(refused.Sentence(agent, weather, d.Reason))
		if d.Allowed || ok != tc.mend {
			t.Errorf("%s: %+v, mended by %+v", name, d, p)
		}
		if _, text := p.Mend("/etc/paths"); ok && !strings.HasPrefix(text, "consul intention create -allow agent-a weather\n#") {
			t.Errorf("%s: %q", name, text)
		}
	}
}

// An answer that is none is an error, and changes nothing.
func TestNoAnswer(t *testing.T) {
	for _, body := range []string{"", "null", "[]", `{"other": []}`, `{"weather": [], "other": []}`, `{"weather": {}}`} {
		if set, err := setOf(weather, []byte(body)); err == nil {
			t.Errorf("%q: %v", body, set)
		}
	}
	if _, err := setOf(weather, []byte(`{"weather": null}`)); err != nil {
		t.Errorf("no intention at all: %v", err)
	}
}

// Whatever comes, nothing panics, and what is allowed was allowed by an intention.
func FuzzSetOf(f *testing.F) {
	for _, i := range []map[string]any{l4(agent, weather, "allow"), l7("*", weather, permit("allow", map[string]any{"PathRegex": "/v[12]"}))} {
		b, err := json.Marshal(map[string]any{weather: []any{i}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, body string) {
		set, err := setOf(weather, []byte(body))
		if err != nil {
			return
		}
		if d := set.Decide(agent, weather, &consul.Request{Method: "GET", Path: "/v1"}); d.Allowed && !strings.Contains(strings.ToLower(body), "allow") {
			t.Errorf("allowed by %s", body)
		}
	})
}

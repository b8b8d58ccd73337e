package consul_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"bivouac/consul"
	"bivouac/consul/consultest"
	"bivouac/consul/pathstest"
	"bivouac/edge/protocol"
)

type memory struct{ *consultest.Memory }

func (m memory) Replace(_ *testing.T, in ...consul.Intention) { m.Set(in...) }

type directory struct {
	*consul.Directory
	path string
}

func (d directory) Replace(t *testing.T, intentions ...consul.Intention) {
	t.Helper()
	want := map[string]bool{}
	for i, in := range intentions {
		name := filepath.Join(d.path, fmt.Sprintf("entry-%d.hcl", i))
		want[name] = true
		write(t, name, render(in))
	}
	names, err := filepath.Glob(filepath.Join(d.path, "*.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !want[name] {
			os.Remove(name)
		}
	}
}

// render an entry as an operator writes it.
func render(in consul.Intention) string {
	action := map[bool]string{true: "allow", false: "deny"}
	var b strings.Builder
	fmt.Fprintf(&b, "Kind = \"service-intentions\"\nName = %q\nSources = [\n", in.Destination)
	for _, s := range in.Sources {
		if len(s.Permissions) == 0 {
			fmt.Fprintf(&b, "  { Name = %q, Action = %q },\n", s.Name, action[s.Allow])
			continue
		}
		fmt.Fprintf(&b, "  { Name = %q, Permissions = [\n", s.Name)
		for _, p := range s.Permissions {
			fmt.Fprintf(&b, "    { Action = %q, HTTP = { %s } },\n", action[p.Allow], renderHTTP(p.HTTP))
		}
		b.WriteString("  ] },\n")
	}
	b.WriteString("]\n")
	return b.String()
}

func renderHTTP(h consul.HTTP) string {
	var fields []string
	add := func(name, value string) {
		if value != "" {
			fields = append(fields, fmt.Sprintf("%s = %s", name, value))
		}
	}
	quoted := func(s string) string {
		if s == "" {
			return ""
		}
		return fmt.Sprintf("%q", s)
	}
	regex := func(re *regexp.Regexp) string {
		if re == nil {
			return ""
		}
		return quoted(strings.TrimSuffix(strings.TrimPrefix(re.String(), `\A(?:`), `)\z`))
	}
	flag := map[bool]string{true: "true"}
	add("PathExact", quoted(h.PathExact))
	add("PathPrefix", quoted(h.PathPrefix))
	add("PathRegex", regex(h.PathRegex))
	if len(h.Methods) > 0 {
		add("Methods", `["`+strings.Join(h.Methods, `", "`)+`"]`)
	}
	var headers []string
	for _, x := range h.Header {
		outer := fields
		fields = nil
		add("Name", quoted(x.Name))
		add("Present", flag[x.Present])
		add("Exact", quoted(x.Exact))
		add("Prefix", quoted(x.Prefix))
		add("Suffix", quoted(x.Suffix))
		add("Contains", quoted(x.Contains))
		add("Regex", regex(x.Regex))
		add("Invert", flag[x.Invert])
		add("IgnoreCase", flag[x.IgnoreCase])
		headers = append(headers, "{ "+strings.Join(fields, ", ")+" }")
		fields = outer
	}
	if len(headers) > 0 {
		add("Header", "["+strings.Join(headers, ", ")+"]")
	}
	return strings.Join(fields, ", ")
}

// write replaces the file as an editor does: temp, then rename.
func write(t *testing.T, name, text string) {
	t.Helper()
	err := os.WriteFile(name+".tmp", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(name+".tmp", name)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, files map[string]string) directory {
	t.Helper()
	path := t.TempDir()
	for name, text := range files {
		write(t, filepath.Join(path, name), text)
	}
	d, err := consul.OpenDirectory(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return directory{d, path}
}

func TestPaths(t *testing.T) {
	t.Run("Memory", func(t *testing.T) {
		pathstest.Run(t, func(*testing.T) pathstest.Source { return memory{consultest.NewMemory()} })
	})
	t.Run("Directory", func(t *testing.T) {
		pathstest.Run(t, func(t *testing.T) pathstest.Source { return open(t, nil) })
	})
}

const good = `Kind = "service-intentions"
Name = "weather"
Sources = [
  { Name = "agent-assistant", Action = "allow", Description = "forecasts" },
  { Name = "*", Action = "deny", Type = "consul" },
]
Meta = { owner = "ops" }
`

func TestParse(t *testing.T) {
	in, err := consul.Parse([]byte(good), "weather.hcl")
	if err != nil {
		t.Fatal(err)
	}
	if in.Destination != "weather" || len(in.Sources) != 2 || !in.Sources[0].Allow || in.Sources[1].Allow || in.Sources[0].At != "weather.hcl:4" {
		t.Errorf("%+v", in)
	}
}

// Consul prints entries as JSON, with the same names.
func TestParseJSON(t *testing.T) {
	const src = `{
  "Kind": "service-intentions",
  "Name": "weather",
  "Sources": [
    {"Name": "agent-assistant", "Permissions": [
      {"Action": "allow", "HTTP": {"PathRegex": "/v[12]/.*", "Methods": ["get"], "Header": [{"Name": "x-env", "Suffix": "${test}", "Invert": true}]}}
    ]},
    {"Name": "*", "Action": "deny"}
  ]
}`
	in, err := consul.Parse([]byte(src), "weather.json")
	if err != nil {
		t.Fatal(err)
	}
	p := in.Sources[0].Permissions[0]
	if in.Destination != "weather" || len(in.Sources) != 2 || !p.Allow || p.HTTP.Methods[0] != "GET" || !p.HTTP.PathRegex.MatchString("/v1/x") ||
		p.HTTP.Header[0].Suffix != "${test}" || !p.HTTP.Header[0].Invert || p.At != "weather.json:6" {
		t.Errorf("%+v", in)
	}
	for broken, want := range map[string]string{
		strings.Replace(src, `"PathRegex"`, `"PathRegexp"`, 1): "weather.json:6: unknown field PathRegexp",
		strings.Replace(src, `"Kind"`, `"kind"`, 1):            "unknown field kind",
		strings.TrimSuffix(src, "}"):                           "weather.json:",
	} {
		if _, err := consul.Parse([]byte(broken), "weather.json"); protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	d := open(t, map[string]string{"weather.json": src, "notes.txt": "no entry"})
	if got := d.Decide("agent-assistant", "weather", &consul.Request{Method: "GET", Path: "/v1/x", Header: http.Header{"X-Env": {"live"}}}); !got.Allowed {
		t.Errorf("%+v", got)
	}
}

// Every mistake names its line; the positive twin is TestParse.
func TestParseRefuses(t *testing.T) {
	replace := func(old, with string) string { return strings.Replace(good, old, with, 1) }
	permission := func(fields string) string {
		return replace(`Action = "allow"`, `Permissions = [{ `+fields+` }]`)
	}
	if _, err := consul.Parse([]byte(permission(`Action = "allow", HTTP = { PathPrefix = "/" }`)), "weather.hcl"); err != nil {
		t.Errorf("a good permission: %v", err)
	}
	for name, tc := range map[string]struct{ src, want string }{
		"both":            {replace(`Action = "allow"`, `Action = "allow", Permissions = [{ Action = "allow", HTTP = { PathPrefix = "/" } }]`), "weather.hcl:4: Action and Permissions exclude"},
		"none":            {replace(`Action = "allow"`, `Permissions = []`), "weather.hcl:4: Permissions is empty"},
		"no http":         {permission(`Action = "allow"`), "needs Action and HTTP"},
		"no perm. action": {permission(`HTTP = { PathPrefix = "/" }`), "needs Action and HTTP"},
		"empty http":      {permission(`Action = "allow", HTTP = {}`), "HTTP is empty"},
		"two paths":       {permission(`Action = "allow", HTTP = { PathPrefix = "/", PathExact = "/a" }`), "at most one of PathExact"},
		"path":            {permission(`Action = "allow", HTTP = { PathPrefix = "v1" }`), "must begin with /"},
		"regex":           {permission(`Action = "allow", HTTP = { PathRegex = "/(" }`), "missing closing )"},
		"hidden bracket":  {permission(`Action = "allow", HTTP = { PathRegex = "/a)|(?:.*" }`), "unexpected )"},
		"method":          {permission(`Action = "allow", HTTP = { Methods = ["GTE"] }`), "\"GTE\" is none of GET"},
		"method twice":    {permission(`Action = "allow", HTTP = { Methods = ["GET", "get"] }`), "GET stands twice"},
		"header name":     {permission(`Action = "allow", HTTP = { Header = [{ Present = true }] }`), "Name of the header is missing"},
		"pseudo header":   {permission(`Action = "allow", HTTP = { Header = [{ Name = ":path", Present = true }] }`), "no name of a header"},
		"header asks two": {permission(`Action = "allow", HTTP = { Header = [{ Name = "a", Present = true, Exact = "x" }] }`), "exactly one of Present"},
		"header asks 0":   {permission(`Action = "allow", HTTP = { Header = [{ Name = "a", Invert = true }] }`), "exactly one of Present"},
		"case of a regex": {permission(`Action = "allow", HTTP = { Header = [{ Name = "a", Regex = "x", IgnoreCase = true }] }`), "IgnoreCase has no meaning"},
		"flag":            {permission(`Action = "allow", HTTP = { Header = [{ Name = "a", Present = "yes" }] }`), "Present must be true or false"},
		"unknown perm.":   {permission(`Action = "allow", TCP = {}`), "unknown field TCP"},
		"unknown http":    {permission(`Action = "allow", HTTP = { Query = "x" }`), "unknown field Query"},
		"unknown header":  {permission(`Action = "allow", HTTP = { Header = [{ Name = "a", Glob = "x" }] }`), "unknown field Glob"},
		"perm. jwt":       {permission(`Action = "allow", HTTP = { PathPrefix = "/" }, JWT = {}`), "JWT"},
		"field twice":     {permission(`Action = "deny", Action = "allow", HTTP = { PathPrefix = "/" }`), "Action stands twice"},
		"wild with l7":    {strings.Replace(permission(`Action = "allow", HTTP = { PathPrefix = "/" }`), `"weather"`, `"*"`, 1), "weather.hcl:4: Permissions need an exact destination"},
		"jwt":             {good + "JWT = {}\n", "weather.hcl:8: JWT"},
		"unknown field":   {good + "Namespce = \"x\"\n", "weather.hcl:8: unknown field Namespce"},
		"unknown in src":  {replace(`Description`, `Precedence`), "weather.hcl:4: unknown field Precedence"},
		"lower case":      {replace(`Name = "weather"`, `name = "weather"`), "weather.hcl:2: unknown field name"},
		"no name":         {replace(`Name = "weather"`, ``), "Name is missing"},
		"no sources":      {"Kind = \"service-intentions\"\nName = \"x\"\n", "Sources is missing"},
		"other kind":      {replace("service-intentions", "service-router"), "weather.hcl:1: Kind is \"service-router\""},
		"action":          {replace(`"allow"`, `"allw"`), "weather.hcl:4: Action must be"},
		"no action":       {replace(`, Action = "allow"`, ``), "weather.hcl:4: Action of the source is missing"},
		"type":            {replace(`"consul"`, `"external"`), "weather.hcl:5: Type is"},
		"part wildcard":   {replace(`agent-assistant`, `agent-*`), "stands alone"},
		"bad name":        {replace(`"weather"`, `"wea/ther"`), "weather.hcl:2"},
		"source twice":    {replace(`"*"`, `"agent-assistant"`), "weather.hcl:5: source \"agent-assistant\" stands here and at weather.hcl:4"},
		"syntax":          {replace(`"weather"`, `"weather`), "weather.hcl:2"},
		"missing bracket": {strings.TrimSuffix(good, "]\nMeta = { owner = \"ops\" }\n"), "weather.hcl:"},
		"too deep":        {replace(`"weather"`, strings.Repeat("[", 200_000)), "weather.hcl: brackets stand deeper than 100"},
		"block":           {"Kind = \"service-intentions\"\nName = \"x\"\nSources {\n}\n", "weather.hcl:3: Sources is written as a list"},
		"variable":        {replace(`"weather"`, `var.x`), "weather.hcl:2: Name must be a text"},
	} {
		_, err := consul.Parse([]byte(tc.src), "weather.hcl")
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// A broken file denies its destination, also through the wildcard that would
// allow it; others stay as they are.
func TestBrokenFileFailsClosed(t *testing.T) {
	wild := `Kind = "service-intentions"
Name = "*"
Sources = [{ Name = "*", Action = "allow" }]
`
	other := strings.Replace(good, `"weather"`, `"other"`, 1)
	for name, tc := range map[string]struct {
		broken         string
		weather, wider bool
	}{
		"good":           {good, true, true},
		"l7":             {strings.Replace(good, `Action = "allow"`, `Permissions = []`, 1), false, true},
		"syntax, named":  {good + "}\n", false, true},
		"no destination": {"%%%", false, false},
	} {
		d := open(t, map[string]string{"wild.hcl": wild, "other.hcl": other, "weather.hcl": tc.broken})
		for _, row := range []struct {
			destination string
			want        bool
		}{{"weather", tc.weather}, {"other", true}, {"unheard-of", tc.wider}} {
			if got := d.Decide("agent-assistant", row.destination, nil); got.Allowed != row.want {
				t.Errorf("%s: %s is allowed=%v because %s", name, row.destination, got.Allowed, got.Reason)
			}
		}
	}
}

// A file that was good keeps nothing when it becomes unreadable text: the
// destination it named is denied, not remembered.
func TestGoodFileThatBreaks(t *testing.T) {
	d := open(t, map[string]string{"weather.hcl": good})
	if !d.Decide("agent-assistant", "weather", nil).Allowed {
		t.Fatal("the good entry does not allow")
	}
	write(t, filepath.Join(d.path, "weather.hcl"), "%%%")
	ran := false
	done, stop := context.WithTimeout(t.Context(), 20*time.Second)
	if err := d.Run(done, func() { ran = true; stop() }); err != nil || !ran {
		t.Fatalf("Run: %v, changed=%v", err, ran)
	}
	if got := d.Decide("agent-assistant", "weather", nil); got.Allowed || !strings.Contains(got.Reason, "weather.hcl:1") {
		t.Errorf("%+v", got)
	}
}

func TestTwoEntriesForOneDestination(t *testing.T) {
	d := open(t, map[string]string{"a.hcl": good, "b.hcl": good})
	if got := d.Decide("agent-assistant", "weather", nil); got.Allowed || !strings.Contains(got.Reason, "two entries") {
		t.Errorf("%+v", got)
	}
}

func TestMissingDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	_, err := consul.OpenDirectory(path, slog.New(slog.DiscardHandler))
	if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "mkdir -p "+path) {
		t.Fatalf("%v", err)
	}
	// The remedy works.
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := consul.OpenDirectory(path, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
}

func TestSourceName(t *testing.T) {
	if got := consul.SourceName("local", "assistant"); got != "agent-assistant" {
		t.Error(got)
	}
	if got := consul.SourceName("acme", "assistant"); got != "acme--agent-assistant" {
		t.Error(got)
	}
}

// Whatever stands in a file: it is an entry, or an error with a place, and never a
// panic.
func FuzzParse(f *testing.F) {
	for _, src := range []string{good, render(pathstest.PermissionEntries[0]), render(pathstest.PermissionEntries[1]), "%%%", `{"Kind":"service-intentions","Name":"x","Sources":[]}`} {
		f.Add(src, false)
		f.Add(src, true)
	}
	f.Fuzz(func(t *testing.T, src string, asJSON bool) {
		name := map[bool]string{false: "x.hcl", true: "x.json"}[asJSON]
		in, err := consul.Parse([]byte(src), name)
		if err != nil {
			var p *consul.ParseError
			if !errors.As(err, &p) || !strings.Contains(err.Error(), name) {
				t.Errorf("%v", err)
			}
			return
		}
		consul.NewSet(in).Decide("agent-a", in.Destination, &consul.Request{Method: "GET", Path: "/"})
	})
}

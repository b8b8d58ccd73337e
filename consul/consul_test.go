package consul_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/consul"
	"bivouac/consul/pathstest"
	"bivouac/edge/protocol"
)

type memory struct{ *consul.Memory }

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

func render(in consul.Intention) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Kind = \"service-intentions\"\nName = %q\nSources = [\n", in.Destination)
	for _, s := range in.Sources {
		action := "deny"
		if s.Allow {
			action = "allow"
		}
		fmt.Fprintf(&b, "  { Name = %q, Action = %q },\n", s.Name, action)
	}
	b.WriteString("]\n")
	return b.String()
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
		pathstest.Run(t, func(*testing.T) pathstest.Source { return memory{consul.NewMemory()} })
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

// Every mistake names its line; the positive twin is TestParse.
func TestParseRefuses(t *testing.T) {
	replace := func(old, with string) string { return strings.Replace(good, old, with, 1) }
	for name, tc := range map[string]struct{ src, want string }{
		"permissions":     {replace(`Action = "allow"`, `Permissions = [{ Action = "allow", HTTP = { PathPrefix = "/" } }]`), "weather.hcl:4: L7 permissions are not enforced"},
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
			if got := d.Decide("agent-assistant", row.destination); got.Allowed != row.want {
				t.Errorf("%s: %s is allowed=%v because %s", name, row.destination, got.Allowed, got.Reason)
			}
		}
	}
}

// A file that was good keeps nothing when it becomes unreadable text: the
// destination it named is denied, not remembered.
func TestGoodFileThatBreaks(t *testing.T) {
	d := open(t, map[string]string{"weather.hcl": good})
	if !d.Decide("agent-assistant", "weather").Allowed {
		t.Fatal("the good entry does not allow")
	}
	write(t, filepath.Join(d.path, "weather.hcl"), "%%%")
	ran := false
	done, stop := context.WithTimeout(t.Context(), 20*time.Second)
	if err := d.Run(done, func() { ran = true; stop() }); err != nil || !ran {
		t.Fatalf("Run: %v, changed=%v", err, ran)
	}
	if got := d.Decide("agent-assistant", "weather"); got.Allowed || !strings.Contains(got.Reason, "weather.hcl:1") {
		t.Errorf("%+v", got)
	}
}

func TestTwoEntriesForOneDestination(t *testing.T) {
	d := open(t, map[string]string{"a.hcl": good, "b.hcl": good})
	if got := d.Decide("agent-assistant", "weather"); got.Allowed || !strings.Contains(got.Reason, "two entries") {
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

//go:build linux

package e2e

import (
	"archive/zip"
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"bivouac/test/e2e/stack"
)

// egressAgent runs commands, and may read packages from a list of destinations.
func egressAgent(name, egress string) string {
	return fmt.Sprintf(`
agent %q {
  profile       = "coding"
  data_boundary = "internal"
  trust         = "trusted"
  instructions  = "You run commands."
  model { route = "scripted" }
  sandbox_tools = ["shell"]
  egress        = %s
}
`, name, egress)
}

const egressScript = `
rule "fetch" {
  when {
    user_contains = "fetch"
    results       = 0
  }
  call "shell" { arguments = { command = "GOFLAGS='-mod=mod -modcacherw' GONOSUMDB='*' GOTOOLCHAIN=local go mod download 2>&1 && cat $HOME/go/pkg/mod/example.test/greet@v1.0.0/greet.go" } }
}
rule "fetched" {
  when {
    user_contains   = "fetch"
    result_contains = "from the registry"
  }
  text = "ANSWER-FETCHED"
}
rule "refused" {
  when {
    user_contains   = "fetch"
    result_contains = "agent-coder may not reach modules"
  }
  text = "ANSWER-REFUSED"
}
rule "alone" {
  when {
    user_contains   = "fetch"
    result_contains = "dial"
  }
  text = "ANSWER-ALONE"
}
`

// moduleServer is a module proxy with one module, and counts what it is asked.
func moduleServer(t *testing.T) (url string, asked *atomic.Int64) {
	t.Helper()
	var packed bytes.Buffer
	z := zip.NewWriter(&packed)
	for name, text := range map[string]string{"go.mod": "module example.test/greet\n", "greet.go": "package greet\n\nconst Word = \"from the registry\"\n"} {
		w, err := z.Create("example.test/greet@v1.0.0/" + name)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"list": "v1.0.0\n", "v1.0.0.info": `{"Version":"v1.0.0"}`, "v1.0.0.mod": "module example.test/greet\n", "v1.0.0.zip": packed.String()}
	asked = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		text, ok := files[strings.TrimPrefix(r.URL.Path, "/example.test/greet/@v/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

// INV-12: a coding turn downloads a module by way of relay and broker, from a registry
// that its definition, the broker's file and a path name; without the path the tool
// says who may not reach what, and without egress there is no way at all.
func TestPackagesByWayOfTheBroker(t *testing.T) {
	url, asked := moduleServer(t)
	s := newStack(t, stack.Config{Script: egressScript, Agents: []string{egressAgent("coder", `["modules"]`), egressAgent("hermit", `[]`)},
		Destinations: []stack.Destination{{Name: "modules", URL: url, Egress: "go"}}})
	me := first(t, s)
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	me.addEdge(stack.EdgeConfig{Name: "laptop", Toolchains: []string{"go=" + strings.TrimSpace(string(root))}})
	dir := me.project("project", map[string]string{"go.mod": "module example.test/project\n\ngo 1.21\n\nrequire example.test/greet v1.0.0\n"})
	run := func(agent string) string {
		t.Helper()
		return me.completed(me.submit("run", "fetch it", "--agent", agent, "--workspace", dir).ID).GetAnswer()
	}
	if got := run("coder"); got != "ANSWER-FETCHED" || asked.Load() == 0 {
		t.Errorf("the registry was asked %d times, and the turn says %q", asked.Load(), got)
	}
	before := asked.Load()
	if got := run("hermit"); got != "ANSWER-ALONE" || asked.Load() != before {
		t.Errorf("without egress: %q", got)
	}
	me.write(s.Path("broker", "paths", "modules.hcl"), "Kind = \"service-intentions\"\nName = \"modules\"\nSources = [{ Name = \"agent-hermit\", Action = \"allow\" }]\n", 0o600)
	await(t, "the path to go", func() error {
		if got := run("coder"); got != "ANSWER-REFUSED" {
			return fmt.Errorf("the turn says %q", got)
		}
		return nil
	})
	before = asked.Load()
	if got := run("coder"); got != "ANSWER-REFUSED" || asked.Load() != before {
		t.Errorf("without a path: %q, and the registry was asked", got)
	}
}

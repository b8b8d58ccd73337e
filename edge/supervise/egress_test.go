package supervise

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// registry is the broker's side of package requests: the registry itself, and what
// it was asked.
type registry struct {
	next http.Handler

	mu  sync.Mutex
	got []string
}

func (g *registry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	g.got = append(g.got, r.Header.Get(protocol.EgressDestination)+" "+r.Method+" "+r.Header.Get(protocol.EgressTarget))
	g.mu.Unlock()
	if r.Header.Get(protocol.EgressCapability) != capability {
		http.Error(w, "the request came without the capability", http.StatusUnauthorized)
		return
	}
	in := httptest.NewRequest(r.Method, "http://registry.invalid"+r.Header.Get(protocol.EgressTarget), r.Body)
	in.Header = r.Header
	g.next.ServeHTTP(w, in)
}

func (g *registry) asked() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.got)
}

// outwardTurn runs commands in a real sandbox B whose turn names registries.
func outwardTurn(t *testing.T, g *registry, egress []*runnerv1.Egress, files map[string]string, commands ...string) string {
	t.Helper()
	b := &broker{}
	if g != nil {
		b.packages = g
	}
	cfg := real(t, b)
	cfg.Toolchains = goToolchain(t)
	r := start(t, cfg)
	s := scripted(script(commands))
	s.AttemptId = cfg.Attempt.String()
	text, err := deterministic.Marshal(s)
	must(t, err)
	r.handOverWork(&runnerv1.TurnWork{Spec: text, Trust: "untrusted", WorkspaceDigest: r.packed(repository(t, files)), Egress: egress,
		Limits: &runnerv1.SandboxLimits{MemoryBytes: 1 << 30, CpuMillis: 2000, Pids: 256, DiskBytes: 1 << 30, ExecTimeoutMs: compiles.Milliseconds(), OutputBytes: 4 << 20}}, nil)
	_, all := r.result()
	var texts []string
	for _, got := range toolResults(t, all) {
		texts = append(texts, got.Text)
	}
	r.acknowledge(all)
	return strings.Join(texts, "\n")
}

var goRegistry = []*runnerv1.Egress{{Name: "go-proxy", Protocol: "go", Url: "https://proxy.example"}}

var goProject = map[string]string{
	"go.mod":  "module example.test/project\n\ngo 1.21\n\nrequire example.test/greet v1.0.0\n",
	"main.go": "package main\n\nimport \"example.test/greet\"\n\nfunc main() { println(greet.Word) }\n",
}

// The main path: a command in sandbox B downloads a module through relay and
// broker, and what the broker refuses is text that the command shows.
func TestModulesThroughTheBroker(t *testing.T) {
	g := &registry{next: http.FileServerFS(os.DirFS(moduleProxy(t)))}
	const run = "GOFLAGS='-mod=mod -modcacherw' GONOSUMDB='*' GOTOOLCHAIN=local go mod download 2>&1 && cat $HOME/go/pkg/mod/example.test/greet@v1.0.0/greet.go"
	if said := outwardTurn(t, g, goRegistry, goProject, run); !strings.Contains(said, "from the cache") {
		t.Errorf("go mod download said %q", said)
	}
	if asked := g.asked(); !slices.Contains(asked, "go-proxy GET /example.test/greet/@v/v1.0.0.zip") {
		t.Errorf("the broker was asked %v", asked)
	}
	g.next = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "agent-coder may not reach go-proxy: no path entry allows it\n")
	})
	if said := outwardTurn(t, g, goRegistry, goProject, run); !strings.Contains(said, "agent-coder may not reach go-proxy") {
		t.Errorf("the refusal reads %q", said)
	}
	before := len(g.asked())
	if said := outwardTurn(t, g, nil, goProject, run); strings.Contains(said, "from the cache") || len(g.asked()) != before {
		t.Errorf("without egress: %q, and the broker was asked", said)
	}
}

// The owner's word is kept here too, should a server hide from the daemon that a turn
// names registries: it ends before anything runs. One that names none runs. INV-10.
func TestOwnerRefusesPackages(t *testing.T) {
	for name, egress := range map[string][]*runnerv1.Egress{"with a registry": goRegistry, "without": nil} {
		g := &registry{}
		cfg := real(t, &broker{packages: g})
		cfg.RefuseEgress = true
		r := start(t, cfg)
		s := scripted(script([]string{"echo it ran"}))
		s.AttemptId = cfg.Attempt.String()
		text, err := deterministic.Marshal(s)
		must(t, err)
		r.handOverWork(&runnerv1.TurnWork{Spec: text, Trust: "untrusted", WorkspaceDigest: r.packed(repository(t, goProject)), Egress: egress,
			Limits: &runnerv1.SandboxLimits{MemoryBytes: 1 << 30, CpuMillis: 2000, Pids: 256, DiskBytes: 1 << 30, ExecTimeoutMs: compiles.Milliseconds(), OutputBytes: 4 << 20}}, nil)
		result, all := r.result()
		refused := protocol.Code(result.GetCode()) == protocol.CodePermissionDenied && strings.Contains(result.GetMessage(), "package_egress")
		if refused != (egress != nil) || (len(toolResults(t, all)) == 0) != (egress != nil) || len(g.asked()) != 0 {
			t.Errorf("%s: %v, %d calls, asked %v", name, result, len(toolResults(t, all)), g.asked())
		}
		r.acknowledge(all)
	}
}

// npm installs and git clones through their doors, by the addresses that projects
// have for them.
func TestNpmAndGitThroughTheBroker(t *testing.T) {
	for _, tool := range []string{"git", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool + " is not installed here")
		}
	}
	root := t.TempDir()
	source := repository(t, map[string]string{"hello.txt": "hello from the forge\n"})
	if out, err := exec.Command("git", "clone", "-q", "--bare", source, filepath.Join(root, "r.git")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	doc, err := json.Marshal(map[string]any{"name": "greet", "dist-tags": map[string]string{"latest": "1.0.0"},
		"versions": map[string]any{"1.0.0": map[string]any{"name": "greet", "version": "1.0.0", "dist": map[string]string{"tarball": "https://registry.example/greet/-/greet-1.0.0.tgz"}}}})
	must(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /greet", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(doc) })
	mux.HandleFunc("GET /greet/-/greet-1.0.0.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(npmPackage(t)) })
	mux.Handle("/r.git/", gitBackend(t, root))
	g := &registry{next: mux}
	egress := []*runnerv1.Egress{{Name: "npm", Protocol: "npm", Url: "https://registry.example"}, {Name: "forge", Protocol: "git", Url: "https://forge.example"}}
	said := outwardTurn(t, g, egress, map[string]string{"package.json": `{"name":"p","version":"1.0.0"}`},
		"npm install greet >npm.log 2>&1 && node -p 'require(\"greet\")' || cat npm.log",
		"git clone -q https://forge.example/r.git /tmp/r 2>&1 && cat /tmp/r/hello.txt",
		"git clone -q https://other.example/r.git /tmp/o 2>&1; echo $?")
	if !strings.Contains(said, "from the cache") || !strings.Contains(said, "hello from the forge") || !strings.Contains(said, "128\n") {
		t.Errorf("it said %q", said)
	}
	asked := g.asked()
	for _, want := range []string{"npm GET /greet", "npm GET /greet/-/greet-1.0.0.tgz", "forge GET /r.git/info/refs?service=git-upload-pack", "forge POST /r.git/git-upload-pack"} {
		if !slices.Contains(asked, want) {
			t.Errorf("the broker was not asked %q: %v", want, asked)
		}
	}
}

// gitBackend serves bare repositories as a forge does.
func gitBackend(t *testing.T, root string) http.Handler {
	t.Helper()
	dir, err := exec.Command("git", "--exec-path").Output()
	must(t, err)
	return &cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(dir)), "git-http-backend"), InheritEnv: []string{"PATH"},
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}}
}

// probe is what hostile code tries, from inside of a sandbox that has doors.
const probe = `package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

func main() {
	said := func(what string, err error) {
		if err == nil {
			fmt.Println("OPEN", what)
		}
	}
	for _, at := range []string{"HOST", "169.254.169.254:80", "10.0.0.1:443", "192.168.1.1:80", "1.1.1.1:53", "[2606:4700:4700::1111]:443", "127.0.0.1:7402", "127.0.0.1:80"} {
		c, err := net.DialTimeout("tcp", at, time.Second)
		if err == nil {
			c.Close()
		}
		said("tcp "+at, err)
		u, err := net.Dial("udp", at)
		if err == nil {
			_, err = u.Write([]byte("x"))
			if err == nil {
				u.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
				_, err = u.Read(make([]byte, 10))
			}
			u.Close()
		}
		said("udp "+at, err)
	}
	for _, family := range []int{syscall.AF_PACKET, syscall.AF_INET, 40, 38, 17} {
		kind := syscall.SOCK_RAW
		fd, err := syscall.Socket(family, kind, 0)
		if err == nil {
			syscall.Close(fd)
		}
		said(fmt.Sprint("raw ", family), err)
	}
	r := &net.Resolver{PreferGo: true}
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Second)
	defer stop()
	for _, name := range []string{"proxy.example", "metadata.google.internal", "localhost.localdomain"} {
		_, err := r.LookupHost(ctx, name)
		said("dns "+name, err)
	}
	for _, path := range []string{"/run/bivouac/../supervise.sock", "/workspace/../supervise.sock", "/run/bivouac/1"} {
		_, err := net.Dial("unix", path)
		said("unix "+path, err)
	}
	said("door removed", os.Remove("/run/bivouac/0"))
	said("door changed", os.Chmod("/run/bivouac/0", 0o600))
	said("door made", os.WriteFile("/run/bivouac/new", nil, 0o600))
	// The door is no proxy for other hosts, in any of a proxy's forms.
	for _, line := range []string{"CONNECT HOST HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET http://HOST/x HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET x HTTP/1.1\r\nHost: HOST\r\n\r\n"} {
		c, err := net.Dial("tcp", "127.0.0.1:8471")
		if err != nil {
			fmt.Println("NO DOOR", err)
			return
		}
		fmt.Fprint(c, line)
		b := make([]byte, 12)
		c.Read(b)
		if string(b[9:10]) != "4" {
			fmt.Printf("OPEN %q: %s\n", line, b)
		}
		c.Close()
	}
	// The positive twin: the door itself answers.
	res, err := http.Get("http://127.0.0.1:8471/example.test/greet/@v/list")
	if err != nil || res.StatusCode != 200 {
		fmt.Println("THE DOOR IS SHUT", res, err)
	}
	fmt.Println("TRIED")
}
`

// program is a program of one file, static.
func program(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600))
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "program"), filepath.Join(dir, "main.go"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "program"))
	must(t, err)
	return string(b)
}

// INV-12: from sandbox B nothing is reachable but the doors of its turn: no host, no
// metadata, no name, no raw socket, no socket of the runner's; and a door leads to
// its registry alone. A turn without egress has not even that.
func TestNothingElseIsReachable(t *testing.T) {
	host, err := net.Listen("tcp", "127.0.0.1:0") // of this machine, not of the sandbox
	must(t, err)
	defer host.Close()
	if c, err := net.Dial("tcp", host.Addr().String()); err != nil {
		t.Fatalf("the detector is blind: %v", err)
	} else {
		c.Close()
	}
	files := map[string]string{"probe": program(t, strings.ReplaceAll(probe, "HOST", host.Addr().String()))}
	const run = "chmod +x probe && ./probe 2>&1"
	g := &registry{next: http.FileServerFS(os.DirFS(moduleProxy(t)))}
	if said := outwardTurn(t, g, goRegistry, files, run, "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'"); strings.Contains(said, "OPEN") || strings.Contains(said, "SHUT") || !strings.Contains(said, "TRIED") || strings.Contains(said, capability) {
		t.Errorf("from inside:\n%s", said)
	}
	if asked := g.asked(); len(asked) != 1 || asked[0] != "go-proxy GET /example.test/greet/@v/list" {
		t.Errorf("the broker was asked %v", asked)
	}
	if said := outwardTurn(t, g, nil, files, run, "ls -d /run/bivouac"); strings.Contains(said, "OPEN") || !strings.Contains(said, "NO DOOR") || !strings.Contains(said, "cannot access") {
		t.Errorf("without egress:\n%s", said)
	}
	if len(g.asked()) != 1 {
		t.Error("a turn without egress reached the broker")
	}
}

// Variables of package tools, beside an owner's caches.
func TestEgressVariables(t *testing.T) {
	doors := []door{{registry: &runnerv1.Egress{Protocol: "go"}, port: 1}, {registry: &runnerv1.Egress{Protocol: "git", Url: "https://a.example"}, port: 2},
		{registry: &runnerv1.Egress{Protocol: "git", Url: "https://b.example/x/"}, port: 3}, {registry: &runnerv1.Egress{Protocol: "cargo"}, port: 4}}
	env := egressEnv(doors, []string{"GOPROXY=file:///caches/go/cache/download"})
	for _, want := range []string{"GOPROXY=file:///caches/go/cache/download,http://127.0.0.1:1", "GIT_CONFIG_COUNT=2",
		"GIT_CONFIG_KEY_1=url.http://127.0.0.1:3/.insteadOf", "GIT_CONFIG_VALUE_1=https://b.example/x/", "GIT_CONFIG_VALUE_0=https://a.example/"} {
		if !slices.Contains(env, want) {
			t.Errorf("%q is not among %q", want, env)
		}
	}
	if env := egressEnv(doors[1:], []string{"GOPROXY=off"}); slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "GOPROXY=") }) {
		t.Errorf("without a module proxy: %q", env)
	}
}

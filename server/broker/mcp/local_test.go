//go:build linux

package mcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac/consul"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/bubblewrap"
	"bivouac/server/broker/gateway"
)

// confine is the sandbox of these tests, seen to hold once.
var confine = sync.OnceValues(func() (sandbox.Backend, error) {
	b := bubblewrap.New(bubblewrap.Config{CgroupParent: fmt.Sprintf("bivouac-mcp-test-%d", os.Getpid())})
	return b, Usable(b.Probe(context.Background()))
})

func TestMain(m *testing.M) {
	code := m.Run()
	if b, err := confine(); err == nil {
		if err := b.Tidy(context.Background()); err != nil && code == 0 {
			fmt.Println("sandboxes are left:", err)
			code = 1
		}
	}
	if built != "" {
		os.RemoveAll(filepath.Dir(built))
	}
	os.Exit(code)
}

var built string

// binary of the test server, built once.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "mcp-server-")
	if err != nil {
		return "", err
	}
	built = filepath.Join(dir, "server")
	cmd := exec.Command("go", "build", "-o", built, "./testdata/server")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return built, os.Chmod(dir, 0o755)
})

// local is a server in a sandbox, of one behaviour.
func local(t *testing.T, change func(*Config), args ...string) *Endpoint {
	t.Helper()
	b, err := confine()
	if err != nil {
		t.Skip("SKIPPED: ", err)
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	l := DefaultLocal
	l.Command = append([]string{path}, args...)
	cfg := Config{Name: "notes", Bounds: DefaultBounds, Local: &l, Sandbox: b, Broker: "t"}
	if change != nil {
		change(&cfg)
	}
	e := New(cfg)
	t.Cleanup(e.Close)
	return e
}

var digest = canonical.Digest([]byte(schemaText))

// callOnce opens a session, calls once, and ends it.
func callOnce(ctx context.Context, e *Endpoint, a Access) (*gateway.Answer, error) {
	s, err := e.Open(ctx, a)
	if err != nil {
		return nil, err
	}
	defer s.Close(ctx)
	return s.Call(ctx, Call{Tool: "search", Digest: digest, Arguments: []byte(`{"query":"x"}`)})
}

// A server in a sandbox is spoken to as one over HTTP, and has nothing of the machine.
// INV-12.
func TestLocalServer(t *testing.T) {
	folder, err := os.MkdirTemp("/var/tmp", "mcp-notes-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	if err := errors.Join(os.Chmod(folder, 0o755), os.WriteFile(filepath.Join(folder, "note.txt"), []byte("a note"), 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BIVOUAC_CANARY", "canary")
	e := local(t, func(c *Config) { c.Local.ReadOnly = []string{folder} }, "looks", folder)
	a, err := callOnce(t.Context(), e, Access{})
	if err != nil || a.Failed || body(a) != "env PATH, env HOME, env TMPDIR, env LANG, env PWD" { // bwrap sets the last
		t.Errorf("%+v %v: %s", a, err, body(a))
	}
	for _, mode := range []string{"good", "sdk", "asks", "error"} {
		e := local(t, nil, mode)
		s, err := e.Open(t.Context(), Access{})
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		offers := s.Offers()
		a, err := s.Call(t.Context(), Call{Tool: "search", Digest: offers[0].Digest, Arguments: []byte(`{"query":"x"}`)})
		s.Close(t.Context())
		want := map[string]string{"good": "found", "sdk": "real: x", "error": "the index is closed",
			"asks": "sampling/createMessage refused=true, roots/list refused=true, elicitation/create refused=true, ping refused=false"}[mode]
		if err != nil || !strings.Contains(body(a), want) || a.Failed != (mode == "error") || len(offers) != 1 {
			t.Errorf("%s: %s, %v, %+v", mode, body(a), err, offers)
		}
	}
}

func body(a *gateway.Answer) string {
	if a == nil {
		return ""
	}
	return string(a.Body)
}

// What goes wrong before a tool is called is certain: nothing was. The twin is
// TestLocalServer. INV-5.
func TestLocalServersThatAreNotCalled(t *testing.T) {
	for mode, tc := range map[string]struct {
		says    string
		code    protocol.Code
		timeout time.Duration
		change  func(*Config)
	}{
		"gone":    {says: "ended by itself with code 3, after the words: no[31m database found", code: protocol.CodeFailedPrecondition},
		"banner":  {says: "no JSON object", code: protocol.CodeFailedPrecondition},
		"batch":   {says: "batch", code: protocol.CodeFailedPrecondition},
		"other":   {says: "answered another request", code: protocol.CodeFailedPrecondition},
		"flood":   {says: "max_answer_kib", code: protocol.CodeFailedPrecondition, change: func(c *Config) { c.Bounds.MaxAnswer = 256 << 10 }},
		"memory":  {says: "", change: func(c *Config) { c.Local.Limits.MemoryBytes = 64 << 20 }},
		"chatter": {says: "more than 1000 messages", code: protocol.CodeFailedPrecondition},
		"schema":  {says: "schema changed", code: protocol.CodeFailedPrecondition},
		"twice":   {says: "lists it 2 times", code: protocol.CodeFailedPrecondition},
		"hang":    {says: "the call's time is over", code: protocol.CodeDeadlineExceeded, timeout: 3 * time.Second},
		"deaf":    {says: "the call's time is over", code: protocol.CodeDeadlineExceeded, timeout: 3 * time.Second},
	} {
		t.Run(mode, func(t *testing.T) {
			ctx := t.Context()
			if tc.timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, tc.timeout, protocol.Errorf(protocol.CodeDeadlineExceeded, "the call's time is over"))
				defer cancel()
			}
			e := local(t, tc.change, mode)
			a, err := callOnce(ctx, e, Access{})
			var never *gateway.NotSent
			if err == nil || !errors.As(err, &never) || !strings.Contains(err.Error(), tc.says) || tc.code != "" && protocol.CodeOf(never.Err) != tc.code {
				t.Errorf("%s, %v", body(a), err)
			}
			if s, err := e.Open(ctx, Access{}); err == nil { // its number is free again
				s.Close(ctx)
			} else if strings.Contains(err.Error(), "max_open") {
				t.Error(err)
			}
		})
	}
}

// What goes wrong after a call left is not known, and is never called a failure. INV-5.
func TestLocalServersThatDoNotAnswer(t *testing.T) {
	for mode, timeout := range map[string]time.Duration{"dies": time.Minute, "stalls": time.Second, "garbage": time.Minute} {
		s, err := local(t, nil, mode).Open(t.Context(), Access{})
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		a, err := s.Call(ctx, Call{Tool: "search", Digest: digest, Arguments: []byte(`{"query":"x"}`)})
		cancel()
		s.Close(t.Context())
		if protocol.CodeOf(err) != protocol.CodeOutcomeUnknown || errors.As(err, new(*gateway.NotSent)) {
			t.Errorf("%s: %s, %v", mode, body(a), err)
		}
	}
}

// When a session is over nothing of it runs, whatever it started; the next one finds
// nothing of it. INV-18.
func TestNothingIsLeftOfALocalServer(t *testing.T) {
	marker := fmt.Sprintf("marker-%d-%d", os.Getpid(), time.Now().UnixNano())
	e := local(t, nil, "spawns", marker)
	s, err := e.Open(t.Context(), Access{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Call(t.Context(), Call{Tool: "search", Digest: digest, Arguments: []byte(`{"query":"x"}`)})
	if err != nil || body(a) != "found" {
		t.Errorf("%s %v", body(a), err)
	}
	if running(t, marker) < 2 {
		t.Error("the server and its child were not seen")
	}
	s.Close(t.Context())
	if n := running(t, marker); n != 0 {
		t.Errorf("%d processes are left", n)
	}
}

// running processes of this machine that have an argument.
func running(t *testing.T, argument string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		line, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(line), argument+"\x00") && !strings.HasPrefix(string(line), "bwrap") {
			n++
		}
	}
	return n
}

// A server is started no more often at a time than its file says, and paths are asked
// about each message as they are over HTTP.
func TestLocalServersAreBounded(t *testing.T) {
	e := local(t, func(c *Config) { c.Local.MaxOpen = 1 }, "good")
	s, err := e.Open(t.Context(), Access{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Open(t.Context(), Access{}); !errors.As(err, new(*gateway.NotSent)) || protocol.CodeOf(err) != protocol.CodeRateLimited {
		t.Errorf("a second one: %v", err)
	}
	s.Close(t.Context())
	var asked []string
	a := Access{LeavesFunc: leaves(&asked, nil)}
	if _, err := callOnce(t.Context(), e, a); err != nil {
		t.Error(err)
	}
	if got := strings.Join(asked, ","); got != "POST / initialize,POST / notifications/initialized,POST / tools/list,POST / tools/call search" {
		t.Errorf("paths were asked about %s", got)
	}
	a.LeavesFunc = leaves(&asked, protocol.Errorf(protocol.CodePolicyDenied, "paths say no"))
	if _, err := callOnce(t.Context(), e, a); !errors.As(err, new(*gateway.NotSent)) || protocol.CodeOf(err) != protocol.CodePolicyDenied {
		t.Errorf("%v", err)
	}
}

func leaves(asked *[]string, no error) func(*consul.Request) error {
	return func(w *consul.Request) error {
		*asked = append(*asked, strings.TrimSpace(w.Method+" "+w.Path+" "+w.Header.Get(headerMethod)+" "+w.Header.Get(headerName)))
		if no != nil && w.Header.Get(headerMethod) == methodCall {
			return no
		}
		return nil
	}
}

// What a command may be; the rightful twin is first.
func TestLocalCheck(t *testing.T) {
	good := []Local{{Command: []string{"/usr/bin/notes", "--max-tokens=3", "--keys"}}, {Command: []string{"/opt/notes/run"}, ReadOnly: []string{"/opt/notes", "/srv/data", "/home/ann/notes", "/runs"}},
		{Command: []string{"/usr/bin/notes", "--path=/srv", "--author=ann", "--db=postgres://ann@db:5432/notes", "--compass=1", "--auth=none", "--sort=key", "12:30@noon", "--keyboard=us"}}}
	for _, l := range good {
		if err := l.Check(); len(err) != 0 {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for want, l := range map[string]Local{
		"absolute path":  {Command: []string{"notes"}},
		"absolute":       {},
		"seems to bring": {Command: []string{"/usr/bin/notes", "--api-key=sk-123"}},
		"bring a secret": {Command: []string{"/usr/bin/notes", "--token", "x"}},
		"clean absolute": {Command: []string{"/usr/bin/notes"}, ReadOnly: []string{"data"}},
		"may not cover":  {Command: []string{"/usr/bin/notes"}, ReadOnly: []string{"/etc/ssl"}},
		"path below /":   {Command: []string{"/usr/bin/notes"}, ReadOnly: []string{"/"}},
	} {
		err := errors.Join(l.Check()...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sk-123") {
			t.Errorf("%+v: %v", l, err)
		}
	}
	if err := (Local{Command: []string{"/usr/bin/no-such-program"}}).Missing(); err == nil {
		t.Error("a program that is not there was found")
	}
	if err := (Local{Command: []string{"/bin/sh"}}).Missing(); err != nil {
		t.Error(err)
	}
	if err := Usable(sandbox.Report{Problem: "there is no bwrap"}); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "there is no bwrap") {
		t.Errorf("%v", err)
	}
}

// What an argument may not bring, in no form, and is not repeated; the rightful twins
// are in TestLocalCheck.
func TestLocalSecrets(t *testing.T) {
	for _, a := range []string{"--token=x1canary", "--access-key=x1canary", "--pat=ghp_x1canary", "--pass=x1canary", "--pwd=x1canary", "--auth=Basic x1canary", "--header=Authorization: x1canary",
		"Bearer x1canary", "ghp_x1canary", "--key=sk-x1canary", "postgres://u:x1canary@h/db", "--dsn=postgres://u:x1canary@h", "--dsn=postgres://:x1canary@h", "host=h password=x1canary", "--url=https://h/?a=b&token=x1canary",
		"--private-key=x1canary", "--githubToken=x1canary", "--apiKey=x1canary", "-----BEGIN PRIVATE KEY-----x1canary"} {
		err := errors.Join(Local{Command: []string{"/usr/bin/notes", "--ok", a}}.Check()...)
		if err == nil || !strings.Contains(err.Error(), "argument 2") || !strings.Contains(err.Error(), "bind its credential") || strings.Contains(err.Error(), "x1canary") {
			t.Errorf("%q: %v", a, err)
		}
	}
}

// What a program may not be shown: the machine's own places, homes, the broker's
// folder, sockets, and links that lead there. INV-12.
func TestLocalExposes(t *testing.T) {
	shown := func(dir string) Local { return Local{Command: []string{"/usr/bin/notes"}, ReadOnly: []string{dir}} }
	for _, dir := range []string{"/var/lib/bivouac-broker", "/var/lib/bivouac-broker/paths", "/var/lib", "/var", "/root", "/root/.ssh", "/home", "/home/ann", "/home/ann/.aws", "/run", "/run/docker.sock", "/var/run/secrets", "/proc/1", "/sys", "/dev", "/etc"} {
		if err := errors.Join(shown(dir).Check()...); err == nil || !strings.Contains(err.Error(), "/srv/notes") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	top, err := os.MkdirTemp("", "mcp")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	at := func(name string) string { return filepath.Join(top, name) }
	if err := errors.Join(os.MkdirAll(at("broker/paths"), 0o700), os.MkdirAll(at("notes/deep"), 0o700), os.MkdirAll(at("talks/deep"), 0o700),
		os.Symlink(at("broker"), at("link")), os.Symlink("/run", at("run")), os.WriteFile(at("notes/deep/a"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", at("talks/deep/s"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for dir, says := range map[string]string{
		"broker": "own folder", "broker/paths": "own folder", "": "own folder", "link": "own folder", "run": "of the machine itself", "talks": "is a socket", "talks/deep/s": "is a socket",
		"notes": "", "notes/deep": "", "broker-notes": "",
	} {
		err := shown(at(dir)).Exposed("", at("broker"))
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", dir, err)
		}
	}
}

// A server that says, after it listed them, that its tools changed is not called. INV-10.
func TestLocalToolsThatChange(t *testing.T) {
	s, err := local(t, nil, "changes").Open(t.Context(), Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	for len(s.wire.local.lines) == 0 && t.Context().Err() == nil { // it has said so
		time.Sleep(time.Millisecond)
	}
	_, err = s.Call(t.Context(), Call{Tool: "search", Digest: digest, Arguments: []byte(`{"query":"x"}`)})
	if !errors.As(err, new(*gateway.NotSent)) || !strings.Contains(err.Error(), "changed its tools") {
		t.Errorf("%v", err)
	}
}

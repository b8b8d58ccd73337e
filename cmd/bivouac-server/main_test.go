package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/cmd/internal/laststart"
	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

// run is the command line with arguments, as main runs it.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// Every flag that help names exists, and every sentence of the first start works.
func TestHelpIsTrue(t *testing.T) {
	out, err := run(t, "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--data", "--database", "--dsn-file", "--blobs", "--public", "--runners", "--broker ", "--broker-code-file", "--config", "--tls-cert", "bootstrap"} {
		if !strings.Contains(out, want) {
			t.Errorf("help lacks %s", want)
		}
	}
	out, err = run(t, "bootstrap", "--help")
	if err != nil || !strings.Contains(out, "--token-file") || !strings.Contains(out, "--tenant") {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := run(t, "--no-such-flag"); err == nil {
		t.Error("an unknown flag was taken")
	}
	if _, err := run(t, "argument"); err == nil {
		t.Error("an argument was taken")
	}
}

func TestBootstrap(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	args := []string{"bootstrap", "--data", filepath.Join(dir, "data"), "--tenant", "local", "--principal", "alice", "--token-file", token}
	out, err := run(t, args...)
	if err != nil || !strings.Contains(out, "alice is prn_") {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(token)
	if err != nil {
		t.Fatal(err)
	}
	if secret := strings.TrimSpace(string(text)); strings.Contains(out, secret) {
		t.Error("the token was printed")
	}
	if again, err := run(t, args...); err != nil || again != out {
		t.Errorf("again: %v: %s", err, again)
	}
	if _, err := run(t, "bootstrap", "--data", dir); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("nothing named: %v", err)
	}
}

func TestRefusesToStart(t *testing.T) {
	dir := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := filepath.Join(dir, "server.hcl")
	if err := os.WriteFile(file, []byte("data_dir = \"x\"\npublik {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
		code protocol.Code
	}{
		"clear text": {[]string{"--public", "0.0.0.0:0"}, "loopback", protocol.CodeInvalidArgument},
		"port taken": {[]string{"--public", taken.Addr().String()}, "in use", protocol.CodeFailedPrecondition},
		"no code":    {[]string{"--public", "127.0.0.1:0", "--runners", "127.0.0.1:0"}, "bivouac-broker server-code", protocol.CodeFailedPrecondition},
		"bad file":   {[]string{"--config", file}, "server.hcl:2", protocol.CodeInvalidArgument},
		"bad level":  {[]string{"--log-level", "loud"}, "--log-level", protocol.CodeInvalidArgument},
	} {
		_, err := run(t, append([]string{"--data", filepath.Join(dir, "data")}, c.args...)...)
		if protocol.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFlagsWinOverTheFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "server.hcl")
	if err := os.WriteFile(file, []byte("data_dir = \""+filepath.Join(dir, "file")+"\"\npublic { address = \"127.0.0.1:1\" }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(dir, "token")
	if _, err := run(t, "bootstrap", "--config", file, "--principal", "alice", "--token-file", token); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "file", "bivouac.db")); err != nil {
		t.Errorf("the file's directory: %v", err)
	}
	if _, err := run(t, "bootstrap", "--config", file, "--data", filepath.Join(dir, "flag"), "--principal", "alice", "--token-file", filepath.Join(dir, "token2")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "flag", "bivouac.db")); err != nil {
		t.Errorf("the flag's directory: %v", err)
	}
}

// A server that cannot start leaves no directory that looks like a server's; where
// bivouac dev has the only one, the refusal says what starts it. With a code it goes on.
func TestRefusalLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_STATE_HOME", dir)
	own, dev := filepath.Join(dir, "bivouac", "server"), filepath.Join(dir, "bivouac", "dev", "server")
	start := []string{"--public", "127.0.0.1:0", "--runners", "127.0.0.1:0"}
	if _, err := run(t, start...); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), own+" is not enrolled") {
		t.Errorf("with nothing: %v", err)
	}
	if _, err := os.Stat(own); err == nil {
		t.Error("a refused start made a directory")
	}
	if _, err := run(t, "bootstrap", "--data", dev, "--principal", "me", "--token-file", filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, start...); err == nil || !strings.Contains(err.Error(), "is started, with its broker, by: bivouac dev") {
		t.Errorf("with bivouac dev's: %v", err)
	}
	code := filepath.Join(dir, "code")
	if err := os.WriteFile(code, []byte("no code\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, append(start, "--broker-code-file", code)...); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("one of its own, beside bivouac dev's: %v", err)
	}
}

// What a start was given is what the next one, and the doctor, begin with; a command line
// with an address of its own is a whole one, and the doctor's flags win one by one.
func TestLastStart(t *testing.T) {
	t.Chdir(t.TempDir())
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	before := []string{"--public", taken.Addr().String(), "--runners", "127.0.0.1:0", "--broker", "127.0.0.1:1", "--blobs", "artifacts"}
	c := command()
	if err := c.ParseFlags(before); err != nil {
		t.Fatal(err)
	}
	given, err := kept.Given(c)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := run(t, "bootstrap", "--data", "data", "--principal", "me", "--token-file", "token"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, _ := run(t, "doctor", "--data", "data"); strings.Contains(out, "last start") || !strings.Contains(out, "API 127.0.0.1:7400") {
		t.Errorf("before a start: %s", out)
	}
	if err := given.Keep("data"); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, "--data", "data"); err == nil || !strings.Contains(err.Error(), taken.Addr().String()) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("bare: %v", err)
	}
	if _, err := run(t, "--data", "data", "--public", "127.0.0.1:0", "--runners", "127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), "not enrolled") {
		t.Errorf("a whole command line: %v", err)
	}
	out, _ := run(t, "doctor", "--data", "data")
	if want := "API " + taken.Addr().String() + ", runners 127.0.0.1:0, broker 127.0.0.1:1, as at the last start (bivouac-server --data data starts it so again)"; !strings.Contains(out, want) {
		t.Errorf("the doctor lacks %q: %s", want, out)
	}
	if out, _ = run(t, "doctor", "--data", "data", "--public", "127.0.0.1:0"); !strings.Contains(out, "API 127.0.0.1:0, runners 127.0.0.1:0, broker 127.0.0.1:1") {
		t.Errorf("the doctor with a flag: %s", out)
	}
	if out, err = run(t, "backup", "--data", "data", "copy.tar"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat("artifacts"); err != nil {
		t.Errorf("a copy is not of the artifacts of the last start: %v", err)
	}
	if err := os.WriteFile(filepath.Join("data", "last-start.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, "--data", "data"); protocol.CodeOf(err) != protocol.CodeDataLoss || !strings.Contains(err.Error(), "rm data/last-start.json") {
		t.Errorf("damaged: %v", err)
	}
}

// A server that serves has kept what it was given.
func TestServingKeepsItsFlags(t *testing.T) {
	dir := t.TempDir()
	code, err := identity.NewCode(identity.CodeServer, strings.Repeat("ab", 32), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "code")
	if err := os.WriteFile(file, []byte(code.Reveal()), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	cmd := command()
	cmd.SetArgs([]string{"--data", filepath.Join(dir, "data"), "--public", "127.0.0.1:0", "--runners", "127.0.0.1:0", "--broker", "127.0.0.1:1", "--broker-code-file", file})
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if last, _ := laststart.Read(filepath.Join(dir, "data")); last != nil {
			if last["broker"][0] != "127.0.0.1:1" || last["broker-code-file"] != nil {
				t.Errorf("kept %v", last)
			}
			break
		}
		time.Sleep(5 * time.Millisecond) // a file tells of itself to nobody
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if last, err := laststart.Read(filepath.Join(dir, "data")); err != nil || last == nil {
		t.Errorf("nothing is kept: %v", err)
	}
}

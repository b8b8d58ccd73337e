package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/cmd/internal/devdir"
	"bivouac/cmd/internal/laststart"
	"bivouac/edge/protocol"
	"bivouac/server"
)

// The two commands, as a person runs them; what is copied is server/backup's to prove.
func TestBackupAndRestore(t *testing.T) {
	dir := t.TempDir()
	data, again, file := filepath.Join(dir, "data"), filepath.Join(dir, "again"), filepath.Join(dir, "copy.tar")
	if _, err := run(t, "bootstrap", "--data", data, "--principal", "alice", "--token-file", filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	out, err := run(t, "backup", "--data", data, "--keyring", "/etc/keyring.age", file)
	if err != nil || !strings.Contains(out, "/etc/keyring.age") {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := run(t, "backup", "--data", data, file); protocol.CodeOf(err) != protocol.CodeAlreadyExists {
		t.Errorf("over a file: %v", err)
	}
	if out, err = run(t, "restore", "--data", again, file); err != nil || !strings.Contains(out, "revoked again") || !strings.Contains(out, "into "+again) || !strings.Contains(out, "bivouac-broker ledger accept --epoch ") || strings.Contains(out, "--epoch --data") {
		t.Fatalf("%v: %s", err, out)
	}
	if !strings.Contains(out, "needs a new code") || !strings.Contains(out, "bivouac-broker server-code --out code") || !strings.Contains(out, "bivouac-server --data "+again+" --public HOST:7400 --tls-cert FILE --tls-key FILE --runners HOST:7401 --broker HOST:7402 --broker-code-file code") {
		t.Errorf("how it enrols is not said: %s", out)
	}
	if _, err := run(t, "restore", "--data", again, file); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "mv "+again+" "+again+".old") {
		t.Errorf("over a store: %v", err)
	}
	// What the refusal says makes room. A server that kept its key is enrolled as before.
	if err := os.Rename(again, again+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(again, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(again, "server.key"), []byte("key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err = run(t, "restore", "--data", again, file); err != nil || !strings.Contains(out, "needs no new code. Start it: bivouac-server --data "+again) {
		t.Fatalf("after mv: %v: %s", err, out)
	}
	// The principal came along: its token works, and nothing is made.
	if out, err = run(t, "bootstrap", "--data", again, "--principal", "alice", "--token-file", filepath.Join(dir, "token")); err != nil || !strings.Contains(out, "alice is prn_") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err = run(t, "restore", "--in-place", "--data", again); err != nil || !strings.Contains(out, "epoch") {
		t.Errorf("in place: %v: %s", err, out)
	}
	for _, args := range [][]string{{"backup"}, {"restore"}, {"restore", "--in-place", file}, {"restore", "--data", again, file, file}} {
		if _, err := run(t, args...); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%v: %v", args, err)
		}
	}
	if _, err := run(t, "backup", "--data", filepath.Join(dir, "nothing"), filepath.Join(dir, "x.tar")); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "--data DIR") {
		t.Errorf("of nothing: %v", err)
	}
	if err := os.Truncate(file, 2000); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, "restore", "--data", filepath.Join(dir, "third"), file); protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("cut off: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "third")); err == nil {
		t.Error("a refused restore made a directory")
	}
}

// Without --data a copy is of the server that is there, bivouac dev's too, and a
// restore prints the command for the broker that lies beside it.
func TestBackupFindsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_STATE_HOME", filepath.Join(dir, "state"))
	dev := filepath.Join(dir, "state", "bivouac", "dev")
	if _, err := run(t, "backup", filepath.Join(dir, "none.tar")); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("of nothing: %v", err)
	}
	if _, err := run(t, "bootstrap", "--data", filepath.Join(dev, "server"), "--principal", "alice", "--token-file", filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "copy.tar")
	if out, err := run(t, "backup", file); err != nil || !strings.Contains(out, "the state of "+filepath.Join(dev, "server")) {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.MkdirAll(filepath.Join(dev, "broker", "paths"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"backup", "--data", dev, filepath.Join(dir, "whole.tar")}, {"restore", "--data", dev, file}} {
		if _, err := run(t, args...); protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), "--data "+filepath.Join(dev, "server")) {
			t.Errorf("%s of the whole deployment: %v", args[0], err)
		}
	}
	if err := os.Rename(filepath.Join(dev, "server"), filepath.Join(dir, "old")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dev, devdir.AddressFile), []byte(`{"public":"127.0.0.1:7500"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run(t, "restore", "--data", filepath.Join(dev, "server"), file)
	if err != nil || !strings.Contains(out, "Start it: bivouac dev --public 127.0.0.1:7500") || !strings.Contains(out, " --data "+filepath.Join(dev, "broker")+"\n") {
		t.Fatalf("%v: %s", err, out)
	}
}

// A server that was moved away tells with which flags it was started; one that is not
// there leaves a place for each.
func TestRestoredServerKeepsItsAddresses(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	if got := enrolling(data); !strings.Contains(got, "--runners HOST:7401 --broker HOST:7402 --broker-code-file code") {
		t.Errorf("unknown: %s", got)
	}
	if err := os.MkdirAll(data+".old", 0o700); err != nil {
		t.Fatal(err)
	}
	last := laststart.Start{"public": {"192.0.2.1:7400"}, "runners": {"192.0.2.1:7401"}, "broker": {"192.0.2.1:7402"}}
	if err := last.Keep(data + ".old"); err != nil {
		t.Fatal(err)
	}
	if got, want := enrolling(data), "bivouac-server --data "+data+" --broker 192.0.2.1:7402 --public 192.0.2.1:7400 --runners 192.0.2.1:7401 --broker-code-file code  ("; !strings.HasPrefix(got, want) {
		t.Errorf("moved away: %s, want %s", got, want)
	}
}

// Where to log in is where the server listened last; a first one is on this machine.
func TestBootstrapNamesTheAPI(t *testing.T) {
	c := server.Default()
	c.DataDir = t.TempDir()
	if got := api(c); got != "http://"+c.PublicAddress {
		t.Errorf("a first server: %s", got)
	}
	if err := (laststart.Start{"public": {"192.0.2.1:7400"}, "tls-cert": {"/etc/cert.pem"}}).Keep(c.DataDir); err != nil {
		t.Fatal(err)
	}
	if got := api(c); got != "https://192.0.2.1:7400" {
		t.Errorf("one that was started: %s", got)
	}
}

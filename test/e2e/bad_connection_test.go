//go:build linux

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/test/e2e/stack"
)

// Whoever waits for a turn while the server dies is told, once, and gets the
// answer when it is back; nothing is asked twice. Without a server, and with
// nothing to wait for, a command says what to do.
func TestBadConnection(t *testing.T) {
	p := newBad(t)
	notes := filepath.Join(p.home, "notes")
	p.write(filepath.Join(notes, "todo.txt"), "buy bread\n", 0o644)
	p.addEdge(stack.EdgeConfig{Name: "laptop", Folders: []string{"notes=" + notes + ":rw"}})

	cmd := exec.Command(p.binary("bivouac"), "--config", p.login, "chat", "write notes/todo.txt")
	cmd.Env = []string{"HOME=" + p.home}
	var out bytes.Buffer
	said := filepath.Join(p.home, "said")
	f, err := os.Create(said)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = &out, f
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	shows := func(what string) {
		t.Helper()
		await(t, what, func() error {
			if b, err := os.ReadFile(said); err != nil || !bytes.Contains(b, []byte(what)) {
				return errNotYet
			}
			return nil
		})
	}
	shows("PENDING")
	if err := p.Server.Kill(); err != nil {
		t.Fatal(err)
	}
	shows("the connection is lost, and tried again until it is back")
	p.refused(protocol.CodeUnavailable, []string{"the server at " + p.url + " cannot be reached", "bivouac dev or bivouac-server", "bivouac login"}, "turns")
	if err := p.Server.Start(); err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	shows("connected again; nothing was missed")
	var list struct{ Approvals []struct{ ID string } }
	if p.decoded(&list, "approvals"); len(list.Approvals) != 1 {
		t.Fatalf("%d approvals", len(list.Approvals))
	}
	p.must("approve", list.Approvals[0].ID)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	matches(t, out.String(), "I got: ")
	if b, err := os.ReadFile(filepath.Join(notes, "todo.txt")); err != nil || string(b) != "written\n" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	if b, err := os.ReadFile(said); err != nil || bytes.Count(b, []byte("the connection is lost")) != 1 || bytes.Count(b, []byte("PENDING")) != 1 {
		t.Errorf("it said (%v):\n%s", err, b)
	}
}

//go:build linux

package bubblewrap

import (
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// TestSweepAfterCrash kills an edge with a living sandbox: its processes die
// with it, and the next start removes its group. INV-18.
func TestSweepAfterCrash(t *testing.T) {
	b := testBackend()
	tree, err := b.detect()
	if err != nil {
		t.Skip("without control groups there is nothing to sweep: ", err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{dieVariable + "=" + testParent, "PATH=" + os.Getenv("PATH")}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatalf("the edge to be killed did not start: %v", err)
	}
	left := tree.Open("left")
	if pids, err := left.Processes(); err != nil || len(pids) < 4 {
		t.Fatalf("its group has the processes %v, %v", pids, err)
	}
	if removed, err := b.Sweep(t.Context(), []string{"left"}); err != nil || len(removed) > 0 {
		t.Errorf("a sweep that keeps it removed %v, %v", removed, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		pids, err := left.Processes()
		if err == nil && len(pids) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("processes %v outlived their edge: %v", pids, err)
		}
	}
	if removed, err := b.Sweep(t.Context(), nil); err != nil || !slices.Contains(removed, "left") {
		t.Errorf("the sweep removed %v, %v", removed, err)
	}
	if names, err := tree.List(); err != nil || slices.Contains(names, "left") {
		t.Errorf("groups after the sweep: %v, %v", names, err)
	}
}

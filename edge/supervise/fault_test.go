//go:build faults

package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
)

// A worker is stopped at a label and killed by the number that was recorded.
func TestFaultInsideASandbox(t *testing.T) {
	file := filepath.Join(t.TempDir(), "reached")
	t.Setenv("BIVOUAC_FAULT", string(fault.WorkerToolDone))
	t.Setenv("BIVOUAC_FAULT_FILE", file)
	cfg := real(t, &broker{})
	binary := filepath.Join(t.TempDir(), "bivouac-worker")
	build := exec.Command("go", "build", "-tags", "faults", "-o", binary, "bivouac/cmd/bivouac-worker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cfg.WorkerPath = binary
	r := start(t, cfg)
	r.handOver(scripted(script([]string{"echo one", "echo two"})), "", nil)
	var label string
	var pid int
	waitFor(t, "the label", func() bool {
		b, _ := os.ReadFile(file)
		n, _ := fmt.Sscan(string(b), &label, &pid)
		return n == 2
	})
	if label != string(fault.WorkerToolDone) || pid == 0 {
		t.Fatalf("recorded %q %d", label, pid)
	}
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	res, all := r.result()
	if res.Code != protocol.ResultInterrupted || len(toolResults(t, all)) != 0 {
		t.Errorf("result %+v", res)
	}
	r.acknowledge(all)
}

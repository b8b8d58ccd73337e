//go:build faults

package supervise

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"bivouac/edge/fault"
)

// faultEnv tells the worker the label at which it stops, unless a process has
// reached it already.
func faultEnv() []string {
	label, file := os.Getenv("BIVOUAC_FAULT"), os.Getenv("BIVOUAC_FAULT_FILE")
	if _, err := os.Lstat(file); label == "" || err == nil {
		return nil
	}
	return []string{"BIVOUAC_FAULT=" + label}
}

// faultSaid records label and pid for a worker, which can write no file and does
// not know its number outside of the sandbox.
func faultSaid(line string) {
	label, said := strings.CutPrefix(line, fault.Said+" ")
	if !said {
		return
	}
	f, err := os.OpenFile(os.Getenv("BIVOUAC_FAULT_FILE"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "%s %d\n", label, workerPID())
}

// workerPID is the worker below this process; zero when there is none.
func workerPID() int {
	parents := map[int]int{}
	var workers []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		if fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])); len(fields) > 1 {
			parents[pid], _ = strconv.Atoi(fields[1])
		}
		if line, _ := os.ReadFile(filepath.Join(dir, "cmdline")); string(line) == WorkerInside+"\x00" {
			workers = append(workers, pid)
		}
	}
	for _, pid := range workers {
		for at := pid; at > 1; at = parents[at] {
			if at == os.Getpid() {
				return pid
			}
		}
	}
	return 0
}

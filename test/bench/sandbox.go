//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// sandboxFigures compares a run of /bin/true in a sandbox of ours with bwrap alone
// under the same flags, in turn, so that noise hits both. The flags are the backend's
// own, so its benchmark knows them.
func sandboxFigures(ctx context.Context, runs int) error {
	out, err := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkRunTrue$", "-benchtime", strconv.Itoa(runs)+"x",
		"bivouac/edge/sandbox/bubblewrap").CombinedOutput()
	if err != nil {
		return fmt.Errorf("the sandbox benchmark: %w\n%s", err, out)
	}
	figures := map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) == 0 || !strings.HasPrefix(f[0], "BenchmarkRunTrue") {
			continue
		}
		for i := 2; i+1 < len(f); i += 2 {
			if n, err := strconv.ParseFloat(f[i], 64); err == nil {
				figures[f[i+1]] = n
			}
		}
	}
	if figures["ratio"] == 0 {
		return fmt.Errorf("the sandbox benchmark said nothing:\n%s", out)
	}
	report("sandbox_true_vs_bwrap", figures["ratio"], "x", 1.5, false)
	fmt.Printf("bench name=sandbox_true value=%.4g unit=ms\n", figures["µs/run"]/1000)
	return nil
}

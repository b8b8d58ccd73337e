//go:build linux

package stack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"bivouac/test/process"
)

// Process is one part of the product.
type Process = process.Process

// sweep kills what is left of a stack: processes whose command line names its
// directory, which are supervisors, each by its number.
func sweep(dir string) error {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range lines {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		line, err := os.ReadFile(name)
		if err != nil || pid == os.Getpid() || !bytes.Contains(line, []byte(dir+"/")) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("process %d is left: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

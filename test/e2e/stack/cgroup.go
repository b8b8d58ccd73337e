//go:build linux

package stack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"bivouac/edge/state"
)

// emptyIn is how long the processes of a killed daemon may take to follow it.
const emptyIn = 5 * time.Second

// removeGroups removes the control groups of a runner whose state directory goes
// away: a runner keeps its own for its next start. What was in them is dying.
func removeGroups(dir string) error {
	d, err := state.Open(dir)
	if err != nil {
		return nil // it never joined, so it never made any
	}
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*", "/sys/fs/cgroup/*/*"} {
		tops, err := filepath.Glob(filepath.Join(pattern, d.Scope()))
		errs = append(errs, err)
		for _, top := range tops {
			err := removeGroup(top)
			for end := time.Now().Add(emptyIn); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); err = removeGroup(top) {
				time.Sleep(20 * time.Millisecond)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeGroup removes a group after the groups below it.
func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("a control group is left: %w", err)
	}
	return nil
}

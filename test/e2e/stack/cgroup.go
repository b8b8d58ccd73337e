//go:build linux

package stack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"bivouac/edge/sandbox/bubblewrap"
	"bivouac/edge/state"
)

// groupPatterns are where a machine may have its control group, by the layout of
// the kernel's tree.
var groupPatterns = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*", "/sys/fs/cgroup/*/*"}

// removeGroups ends what a killed daemon left in its control groups, as its next
// start would, and removes them: a state directory that goes away has no next start.
func removeGroups(dir string) error {
	d, err := state.Open(dir)
	if err != nil {
		return nil // it never joined, so it never made any
	}
	_, err = bubblewrap.New(bubblewrap.Config{CgroupParent: d.Scope()}).Sweep(context.Background(), nil)
	errs := []error{err}
	for _, pattern := range groupPatterns {
		tops, err := filepath.Glob(filepath.Join(pattern, d.Scope()))
		errs = append(errs, err)
		for _, top := range tops {
			if err := os.Remove(top); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("a control group is left: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

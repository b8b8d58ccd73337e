package workspace

import (
	"fmt"

	"bivouac/edge/protocol"
)

// Limits bound a workspace. Both ends check them.
type Limits struct {
	MaxFiles     int
	MaxFileBytes int64
	MaxBytes     int64
	MaxNameBytes int
}

// DefaultLimits fit a large repository without its build products.
func DefaultLimits() Limits {
	return Limits{MaxFiles: 200_000, MaxFileBytes: 64 << 20, MaxBytes: 512 << 20, MaxNameBytes: 4096}
}

// tally counts against limits.
type tally struct {
	limits Limits
	files  int
	bytes  int64
}

func (t *tally) add(name string, size int64) error {
	t.files++
	t.bytes += size
	switch {
	case len(name) > t.limits.MaxNameBytes:
		return protocol.Errorf(protocol.CodeInvalidArgument, "a name in the workspace is longer than %d bytes: %.60q…", t.limits.MaxNameBytes, name)
	case size > t.limits.MaxFileBytes:
		return protocol.Errorf(protocol.CodeInvalidArgument, "%q has %s, a file may have %s: add it to .gitignore or make it smaller",
			name, bytesText(size), bytesText(t.limits.MaxFileBytes))
	case t.bytes > t.limits.MaxBytes:
		return protocol.Errorf(protocol.CodeInvalidArgument, "the workspace is larger than %s (reached at %q): add build products to .gitignore",
			bytesText(t.limits.MaxBytes), name)
	case t.files > t.limits.MaxFiles:
		return protocol.Errorf(protocol.CodeInvalidArgument, "the workspace has more than %d files: add build products to .gitignore", t.limits.MaxFiles)
	}
	return nil
}

func bytesText(n int64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}

//go:build !linux

package lockfile

// Process is not known here.
func Process(string) (pid int, ok bool) { return 0, false }

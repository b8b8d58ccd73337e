package lockfile

import (
	"os"
	"path/filepath"
	"strconv"
)

// Process is the one that Holder names, if it was seen to have the file open: a number
// alone may be another process's by now.
func Process(path string) (pid int, ok bool) {
	pid, err := strconv.Atoi(Holder(path))
	if err != nil || pid <= 1 {
		return 0, false
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return 0, false
	}
	folder := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	files, _ := os.ReadDir(folder) // gone, or another user's: not seen
	for _, f := range files {
		if to, err := os.Readlink(filepath.Join(folder, f.Name())); err == nil && to == real {
			return pid, true
		}
	}
	return 0, false
}

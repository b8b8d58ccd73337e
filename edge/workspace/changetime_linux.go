package workspace

import (
	"io/fs"
	"syscall"
)

// changeTime is when the inode changed; no program can set it back.
func changeTime(st fs.FileInfo) int64 {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return s.Ctim.Nano()
	}
	return 0
}

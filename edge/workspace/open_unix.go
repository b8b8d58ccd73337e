//go:build unix

package workspace

import "syscall"

// A link is never followed where a file was seen, and a pipe that took a file's
// place never blocks.
const (
	openNoFollow  = syscall.O_NOFOLLOW
	openNonBlock  = syscall.O_NONBLOCK
	openDirectory = syscall.O_DIRECTORY
)

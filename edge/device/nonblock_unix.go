//go:build unix

package device

import "syscall"

// nonblock keeps the open of a pipe from waiting for its other end.
const nonblock = syscall.O_NONBLOCK

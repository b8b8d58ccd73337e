//go:build !linux

package cli

import "syscall"

func childAttr() *syscall.SysProcAttr { return nil }

//go:build linux

package main

// getpid32 is getpid through int 0x80.
func getpid32() int32

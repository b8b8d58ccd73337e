//go:build linux && !amd64

package main

func getpid32() int32 { return -1 }

package main

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// INV-17: no memory of a broker that falls is written to a file.
func TestNoCore(t *testing.T) {
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &was); err != nil {
		t.Fatal(err)
	}
	if was.Max == 0 {
		t.Skip("core files are turned off already, for good")
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{Cur: was.Max, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	if got := coreLimit(t); got[0] == "0" {
		t.Fatalf("before: %v", got)
	}
	if err := noCore(); err != nil {
		t.Fatal(err)
	}
	if got := coreLimit(t); got[0] != "0" || got[1] != "0" {
		t.Errorf("soft and hard limit: %v", got)
	}
}

// coreLimit as the system tells it: soft and hard.
func coreLimit(t *testing.T) []string {
	t.Helper()
	limits, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(limits)) {
		if rest, is := strings.CutPrefix(line, "Max core file size"); is {
			return strings.Fields(rest)[:2]
		}
	}
	t.Fatal("/proc/self/limits says nothing of core files")
	return nil
}

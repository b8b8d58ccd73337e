//go:build linux

package stack

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"bivouac/test/process"
)

// Process is one part of the product.
type Process = process.Process

// sweep kills what is left of a stack: processes whose command line names its
// directory, which are supervisors, each by its number.
func sweep(dir string) error {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range lines {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		line, err := os.ReadFile(name)
		if err != nil || pid == os.Getpid() || !bytes.Contains(line, []byte(dir+"/")) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("process %d is left: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

var ports struct {
	sync.Mutex
	taken map[int]bool
}

// freePort finds a port that is free for TCP and UDP, below those that the kernel
// gives to clients, and gives none out twice.
func freePort() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	if ports.taken == nil {
		ports.taken = map[int]bool{}
	}
	for range 200 {
		port := 20000 + rand.IntN(12000)
		if ports.taken[port] || !free(net.JoinHostPort(loopback, strconv.Itoa(port))) {
			continue
		}
		ports.taken[port] = true
		return port, nil
	}
	return 0, errors.New("no free port was found")
}

func free(address string) bool {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return false
	}
	defer l.Close()
	p, err := net.ListenPacket("udp", address)
	if err != nil {
		return false
	}
	return p.Close() == nil
}

//go:build linux

package process

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// loopback is the only host on which tests and the demo listen without a
// namespace of their own.
const loopback = "127.0.0.1"

// ports that this process has been given. Each is the lock on a file that has its
// number, which the kernel lets go when the process ends.
var ports struct {
	sync.Mutex
	held map[int]*os.File
}

// FreePort finds a port of the loopback that is free for TCP and UDP, below those
// that the kernel gives to clients. It is given to nobody else who asks here, in this
// process or in another of the same user, for as long as this process lives: whoever
// has it may listen late, or end and listen again.
func FreePort() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("bivouac-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	for range 200 {
		port := 20000 + rand.IntN(12000)
		if ports.held[port] != nil {
			continue
		}
		held, err := hold(filepath.Join(dir, strconv.Itoa(port)))
		switch {
		case errors.Is(err, syscall.EWOULDBLOCK):
			continue
		case err != nil:
			return 0, err
		case !free(net.JoinHostPort(loopback, strconv.Itoa(port))):
			held.Close()
			continue
		}
		if ports.held == nil {
			ports.held = map[int]*os.File{}
		}
		ports.held[port] = held
		return port, nil
	}
	return 0, errors.New("no free port was found")
}

// hold locks a file, which stays: one that is removed while somebody opens it would
// be two.
func hold(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
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

//go:build linux

package process

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// loopback is the only host on which tests and the demo listen without a
// namespace of their own.
const loopback = "127.0.0.1"

var ports struct {
	sync.Mutex
	taken map[int]bool
}

// FreePort finds a port of the loopback that is free for TCP and UDP, below those
// that the kernel gives to clients, and gives none out twice.
func FreePort() (int, error) {
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

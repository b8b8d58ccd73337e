//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"bivouac/edge/link"
)

// hostPath is loopback.
func hostPath() tunnelPath {
	return tunnelPath{
		listen: func() (net.Listener, net.PacketConn, error) { return listenBoth("127.0.0.1") },
		plain:  func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
		network: link.Network{DialTCP: func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}},
	}
}

// listenBoth opens one free port for streams and packets.
func listenBoth(host string) (net.Listener, net.PacketConn, error) {
	for range 20 {
		l, err := net.Listen("tcp", host+":0")
		if err != nil {
			return nil, nil, err
		}
		p, err := net.ListenPacket("udp", l.Addr().String())
		if err == nil {
			return l, p, nil
		}
		l.Close()
	}
	return nil, nil, errors.New("no port is free for both TCP and UDP")
}

// shapedPath is a cable between two networks of their own, on which what the client
// sends is held to a rate by a token bucket. It says what is missing where it cannot
// be made.
func shapedPath(rate string) (p tunnelPath, remove func(), err error) {
	if os.Getuid() != 0 {
		return p, nil, errors.New("networks of their own need root")
	}
	for _, tool := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return p, nil, fmt.Errorf("%w; Debian's iproute2 has it", err)
		}
	}
	id := fmt.Sprintf("bb%d", os.Getpid())
	client, server := id+"c", id+"s"
	remove = func() {
		for _, n := range []string{client, server} {
			_ = exec.Command("ip", "netns", "del", n).Run() // it may never have been made
		}
	}
	for _, line := range []string{
		"ip netns add " + client, "ip netns add " + server,
		"ip -n " + client + " link add " + id + "v type veth peer name " + id + "w netns " + server,
		"ip -n " + client + " addr add 10.231.78.1/30 dev " + id + "v", "ip -n " + server + " addr add 10.231.78.2/30 dev " + id + "w",
		"ip -n " + client + " link set " + id + "v up", "ip -n " + server + " link set " + id + "w up",
		"ip netns exec " + client + " tc qdisc add dev " + id + "v root tbf rate " + rate + " burst 64kb latency 40ms",
	} {
		f := strings.Fields(line)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			remove()
			return p, nil, fmt.Errorf("%s: %w: %s", line, err, strings.TrimSpace(string(out)))
		}
	}
	return tunnelPath{
		listen: func() (l net.Listener, pc net.PacketConn, err error) {
			err = inside(server, func() (err error) { l, pc, err = listenBoth("10.231.78.2"); return err })
			return l, pc, err
		},
		plain: func() (l net.Listener, err error) {
			err = inside(server, func() (err error) { l, err = net.Listen("tcp", "10.231.78.2:0"); return err })
			return l, err
		},
		network: link.Network{
			ListenPacket: func(context.Context) (c net.PacketConn, err error) {
				err = inside(client, func() (err error) { c, err = net.ListenPacket("udp", "10.231.78.1:0"); return err })
				return c, err
			},
			DialTCP: func(ctx context.Context, address string) (c net.Conn, err error) {
				err = inside(client, func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, "tcp", address); return err })
				return c, err
			},
		},
	}, remove, nil
}

// inside runs f on a thread that is in a network namespace: a socket belongs to the
// network of the thread that made it. The thread is given up with its goroutine's
// lock when it cannot come back.
func inside(name string, f func() error) error {
	runtime.LockOSThread()
	here, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer here.Close()
	there, err := os.Open(filepath.Join("/run/netns", name))
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = f()
	if back := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, back)
	}
	runtime.UnlockOSThread()
	return err
}

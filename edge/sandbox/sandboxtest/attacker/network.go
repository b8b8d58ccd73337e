//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hello reads what the listener outside says to whoever connects.
func hello(network string, addresses []string) (string, error) {
	var errs []error
	for _, a := range addresses {
		c, err := net.DialTimeout(network, a, 2*time.Second)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer c.Close()
		buf := make([]byte, 64)
		n, err := c.Read(buf)
		if err == nil {
			return a + " said " + string(buf[:n]), nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

func dialUnix(addresses []string) (string, error) { return hello("unix", addresses) }
func dialTCP(addresses []string) (string, error)  { return hello("tcp", addresses) }

// allowed families are harmless in an empty network namespace.
var allowed = []int{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6}

// families opens a socket of every other family. The kernel's only answers to a
// family it does not have are these two.
func families([]string) (string, error) {
	var got []string
	for family := range 64 {
		if slices.Contains(allowed, family) {
			continue
		}
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
			protocol := 0
			if family == unix.AF_NETLINK {
				protocol = unix.NETLINK_KOBJECT_UEVENT // route netlink may pass
			}
			fd, err := unix.Socket(family, kind, protocol)
			if err == nil {
				unix.Close(fd)
				got = append(got, fmt.Sprintf("family %d type %d", family, kind))
			}
		}
	}
	if len(got) == 0 {
		return "", errors.New("no other family")
	}
	return strings.Join(got, ", "), nil
}

func rawSocket([]string) (string, error) {
	_, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	return "a raw socket", err
}

// workerSockets tries every call that makes, or names, a socket.
func workerSockets([]string) (string, error) {
	var got []string
	try := func(name string, err error) {
		if err == nil || !errors.Is(err, unix.EPERM) {
			got = append(got, fmt.Sprintf("%s(%v)", name, err))
		}
	}
	for family := range 48 {
		fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
		if err == nil {
			unix.Close(fd)
		}
		if err == nil || errors.Is(err, unix.EINVAL) {
			try(fmt.Sprintf("socket %d", family), err)
		}
	}
	_, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	try("socketpair", err)
	name := &unix.SockaddrUnix{Name: "@bivouac"}
	try("connect", unix.Connect(3, name))
	try("bind", unix.Bind(3, name))
	try("listen", unix.Listen(3, 1))
	_, _, err = unix.Accept(3)
	try("accept", err)
	if len(got) == 0 {
		return "", errors.New("no socket call")
	}
	return strings.Join(got, ", "), nil
}

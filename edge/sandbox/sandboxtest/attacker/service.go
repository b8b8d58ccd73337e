//go:build linux

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func number(args []string) int {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		os.Exit(2)
	}
	return n
}

func exitWith(args []string) { os.Exit(number(args)) }

// cat copies standard input to output, and to standard error what args say.
func cat(args []string) {
	fmt.Fprint(os.Stderr, strings.Join(args, " "))
	if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
		os.Exit(1)
	}
}

// spew writes without end.
func spew([]string) {
	block := make([]byte, 4096)
	for {
		if _, err := os.Stdout.Write(block); err != nil {
			os.Exit(1)
		}
	}
}

// sleep says that it runs, then waits to be killed.
func sleep([]string) {
	fmt.Println("up")
	time.Sleep(time.Hour)
}

// beat says that it lives, again and again.
func beat([]string) {
	for {
		fmt.Println("beat")
		time.Sleep(time.Millisecond)
	}
}

// hog uses so many megabytes and says so.
func hog(args []string) {
	for i := range number(args) {
		block, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			fmt.Println("refused after", i)
			os.Exit(3)
		}
		for p := 0; p < len(block); p += 4096 {
			block[p] = 1
		}
	}
	fmt.Println("used all")
}

// fill writes so many megabytes into a folder, then ends or waits.
func fill(args []string) {
	block := make([]byte, 1<<20)
	for i := range number(args) {
		if err := os.WriteFile(fmt.Sprintf("%s/fill%d", args[1], i), block, 0o644); err != nil {
			fmt.Println(err)
			os.Exit(3)
		}
	}
	fmt.Println("filled")
	if len(args) > 2 {
		return
	}
	time.Sleep(time.Hour)
}

func printArgs(args []string) {
	if len(args) == 1 && args[0] == "euid" {
		fmt.Println(os.Geteuid())
		return
	}
	fmt.Println(strings.Join(args, " "))
}

// victim is a process of the host that an attacker of the same uid could reach.
func victim([]string) {
	_ = unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0) // as where Yama is absent
	fmt.Println("up")
	io.Copy(io.Discard, os.Stdin)
}

// hold is a worker that keeps its socket until the other side closes it.
func hold([]string) {
	fmt.Println("up")
	buf := make([]byte, 1)
	for {
		if n, err := unix.Read(3, buf); n == 0 || err != nil && err != unix.EINTR {
			return
		}
	}
}

// loopback is what tests of honest programs do: listen, dial, ask for interfaces.
func loopback([]string) {
	for _, network := range []string{"tcp4", "unix"} {
		address := "127.0.0.1:0"
		if network == "unix" {
			address = "/tmp/socket"
		}
		l, err := net.Listen(network, address)
		if err == nil {
			var c net.Conn
			if c, err = net.Dial(network, l.Addr().String()); err == nil {
				err = c.Close()
			}
		}
		if err != nil {
			fmt.Println(network, err)
			os.Exit(1)
		}
	}
	all, err := net.Interfaces()
	fmt.Println(len(all), all[0].Name, err)
}

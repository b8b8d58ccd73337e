// Package outward is the way out of sandbox B, as far as there is one: loopback
// ports inside of it, each joined to a socket that the supervisor put there, and
// the command beside which they live.
//
// It copies bytes and holds no authority: no capability, no credential and no
// choice of where they go (INV-12). The code of the sandbox may use, break or end
// it, and gains nothing by that. It refuses nothing but a command line of another
// form. It ends with the command, whose exit status is its own; what it has open
// ends with it.
package outward

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Verb of the command line: `bivouac-worker outward PORT=SOCKET… -- COMMAND…`.
const Verb = "outward"

// Exit statuses of its own, as shells have them.
const (
	badUsage   = 125
	notStarted = 127
	bySignal   = 128
)

// door is one port and the socket behind it.
type door struct{ port, socket string }

// Run opens the doors, runs the command and returns its exit status.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	doors, argv, err := parse(args)
	if err != nil {
		fmt.Fprintln(stderr, "bivouac-worker:", err)
		return badUsage
	}
	w := &way{conns: map[net.Conn]struct{}{}}
	defer w.close()
	for _, d := range doors {
		if err := w.open(d); err != nil {
			fmt.Fprintln(stderr, "bivouac-worker: no way to packages:", err)
			return notStarted
		}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	err = cmd.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &ended):
		fmt.Fprintln(stderr, "bivouac-worker:", err)
		return notStarted
	}
	if s, ok := ended.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return bySignal + int(s.Signal())
	}
	return ended.ExitCode()
}

func parse(args []string) (doors []door, argv []string, err error) {
	for i, a := range args {
		if a == "--" {
			argv = args[i+1:]
			break
		}
		port, socket, ok := strings.Cut(a, "=")
		if n, perr := strconv.ParseUint(port, 10, 16); !ok || perr != nil || n == 0 || socket == "" {
			return nil, nil, fmt.Errorf("%q is no PORT=SOCKET", a)
		}
		doors = append(doors, door{port, socket})
	}
	if len(argv) == 0 {
		return nil, nil, errors.New("usage: bivouac-worker outward PORT=SOCKET… -- COMMAND…")
	}
	return doors, argv, nil
}

// way is all that is open.
type way struct {
	running sync.WaitGroup

	mu        sync.Mutex // guards the fields below
	closed    bool
	listeners []net.Listener
	conns     map[net.Conn]struct{}
}

func (w *way) open(d door) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", d.port))
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.listeners = append(w.listeners, l)
	w.mu.Unlock()
	w.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.running.Go(func() { w.join(c, d.socket) })
		}
	})
	return nil
}

// hold notes a connection, unless all is closed.
func (w *way) hold(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		c.Close()
		return false
	}
	w.conns[c] = struct{}{}
	return true
}

func (w *way) drop(c net.Conn) {
	c.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
}

// join copies both directions until each has ended.
func (w *way) join(inside net.Conn, socket string) {
	if !w.hold(inside) {
		return
	}
	defer w.drop(inside)
	outside, err := net.Dial("unix", socket)
	if err != nil || !w.hold(outside) {
		return
	}
	defer w.drop(outside)
	var both sync.WaitGroup
	for _, c := range [][2]net.Conn{{outside, inside}, {inside, outside}} {
		both.Go(func() {
			_, _ = io.Copy(c[0], c[1]) // either side may go at any time
			if half, ok := c[0].(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
		})
	}
	both.Wait()
}

func (w *way) close() {
	w.mu.Lock()
	w.closed = true
	for _, l := range w.listeners {
		l.Close()
	}
	for c := range w.conns {
		c.Close()
	}
	w.mu.Unlock()
	w.running.Wait()
}

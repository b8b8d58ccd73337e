//go:build linux

// Package loopback has what real servers of tests share: an authority of their own with
// certificates for 127.0.0.1, and a proxy that spoils the way to them. It guarantees that
// no key of an authority is written anywhere, and that a proxy is gone with its test.
package loopback

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy stands between a client and a server and spoils the way between them: it
// passes bytes on, late, never, or not at all. It never reads what it carries.
type Proxy struct {
	listener net.Listener
	group    sync.WaitGroup
	closed   chan struct{}

	mu      sync.Mutex // guards below
	to      string
	way     way
	delay   time.Duration
	changed chan struct{} // closed at the next change of way and delay
	conns   map[net.Conn]struct{}
}

// way is what happens to bytes.
type way int

const (
	passes way = iota
	holds
	refuses
)

// NewProxy opens one before a server, on a port of its own. It ends with the test.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(Host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, to: to, closed: make(chan struct{}), changed: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	p.group.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Address is the URL of the server through the proxy.
func (p *Proxy) Address() string { return "https://" + p.listener.Addr().String() }

// Pass lets everything through, also what was held.
func (p *Proxy) Pass() { p.set(passes, 0) }

// Slow lets every piece through after a delay, each way.
func (p *Proxy) Slow(delay time.Duration) { p.set(passes, delay) }

// Hold takes connections and bytes and lets none through: the server seems to hang.
func (p *Proxy) Hold() { p.set(holds, 0) }

// Refuse cuts every connection and every new one: the server seems to be away.
func (p *Proxy) Refuse() {
	p.set(refuses, 0)
	p.Cut()
}

// Cut ends the connections that are open now.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

// To leads new connections to another server, and ends those to the one of before.
func (p *Proxy) To(server string) {
	p.mu.Lock()
	p.to = server
	p.mu.Unlock()
	p.Cut()
}

func (p *Proxy) set(w way, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.way, p.delay = w, delay
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) close() {
	close(p.closed)
	p.listener.Close()
	p.Cut()
	p.group.Wait()
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.group.Go(func() { p.carry(c) })
	}
}

// own notes connections, so that Cut ends them, unless none may be open.
func (p *Proxy) own(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
		return false
	default:
	}
	if p.way == refuses {
		return false
	}
	for _, c := range conns {
		p.conns[c] = struct{}{}
	}
	return true
}

func (p *Proxy) disown(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
		c.Close()
	}
}

// carry one connection until either side ends it.
func (p *Proxy) carry(client net.Conn) {
	p.mu.Lock()
	to := p.to
	p.mu.Unlock()
	server, err := net.Dial("tcp", to)
	if err != nil {
		client.Close()
		return
	}
	defer p.disown(client, server)
	if !p.own(client, server) {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			p.copy(way[1], way[0])
			p.disown(client, server)
		})
	}
	both.Wait()
}

func (p *Proxy) copy(to io.Writer, from io.Reader) {
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		if n > 0 {
			if p.wait() != nil {
				return
			}
			if _, err := to.Write(piece[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

var errClosed = errors.New("the proxy is closed")

// wait until a piece may go on.
func (p *Proxy) wait() error {
	for {
		p.mu.Lock()
		way, delay, changed := p.way, p.delay, p.changed
		p.mu.Unlock()
		if way == passes && delay == 0 {
			return nil
		}
		var late <-chan time.Time
		if way == passes {
			late = time.After(delay)
		}
		select {
		case <-late:
			return nil
		case <-changed:
		case <-p.closed:
			return errClosed
		}
	}
}

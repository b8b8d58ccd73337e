package brokerlinktest

import (
	"context"
	"errors"
	"net"
	"sync"

	"bivouac/edge/link"
)

// Pipe is a listener whose connections are pipes in memory, so that it works in
// virtual time.
type Pipe struct {
	accept chan net.Conn
	done   chan struct{}
	once   sync.Once
	name   string
}

// NewPipe makes a listener.
func NewPipe(name string) *Pipe {
	return &Pipe{accept: make(chan net.Conn), done: make(chan struct{}), name: name}
}

// Accept waits for a dial.
func (p *Pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close refuses further dials.
func (p *Pipe) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// Addr is a name.
func (p *Pipe) Addr() net.Addr { return pipeAddr(p.name) }

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

// Dial connects to the listener.
func (p *Pipe) Dial(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.accept <- there:
		return here, nil
	case <-p.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Network reaches the listeners by their names and has no UDP.
func Network(pipes ...*Pipe) link.Network {
	return link.Network{
		ListenPacket: func(context.Context) (net.PacketConn, error) { return nil, errors.New("no UDP here") },
		ResolveUDP:   func(context.Context, string) (net.Addr, error) { return nil, errors.New("no UDP here") },
		DialTCP: func(ctx context.Context, address string) (net.Conn, error) {
			for _, p := range pipes {
				if p.name == address {
					return p.Dial(ctx)
				}
			}
			return nil, errors.New("no route to " + address)
		},
	}
}

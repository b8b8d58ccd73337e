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

// Switchboard is a network of named pipes without UDP. A name may be taken
// again when its listener is gone, as after a restart.
type Switchboard struct {
	mu    sync.Mutex // guards pipes
	pipes map[string]*Pipe
}

// Listen opens a name.
func (s *Switchboard) Listen(name string) *Pipe {
	p := NewPipe(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pipes == nil {
		s.pipes = map[string]*Pipe{}
	}
	s.pipes[name] = p
	return p
}

// Dial reaches whoever listens under a name now.
func (s *Switchboard) Dial(ctx context.Context, name string) (net.Conn, error) {
	s.mu.Lock()
	p := s.pipes[name]
	s.mu.Unlock()
	if p == nil {
		return nil, errors.New("no route to " + name)
	}
	return p.Dial(ctx)
}

// Network is the switchboard for a link.
func (s *Switchboard) Network() link.Network {
	noUDP := errors.New("no UDP here")
	return link.Network{
		ListenPacket: func(context.Context) (net.PacketConn, error) { return nil, noUDP },
		ResolveUDP:   func(context.Context, string) (net.Addr, error) { return nil, noUDP },
		DialTCP:      s.Dial,
	}
}

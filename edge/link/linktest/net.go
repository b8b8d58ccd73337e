// Package linktest is a network inside the process: real QUIC over simulated
// packets and TCP as pipes, both in virtual time inside a testing/synctest
// bubble. Cables can be cut: all of them, those of one host, or the one between
// two hosts.
package linktest

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"bivouac/edge/link"
)

// Net is one network. Latency of a packet is the same everywhere.
type Net struct {
	router  *router
	latency time.Duration

	mu        sync.Mutex // guards the fields below
	listeners map[string]*Listener
	nextPort  int
	sockets   map[*socket]bool
}

// New makes an empty network; Close it inside the bubble.
func New(latency time.Duration) *Net {
	return &Net{router: &router{PerfectRouter: &simnet.PerfectRouter{}, cut: map[pair]bool{}}, latency: latency, listeners: map[string]*Listener{}, sockets: map[*socket]bool{}, nextPort: 40000}
}

// router drops packets while a cable is cut.
type router struct {
	*simnet.PerfectRouter
	noUDP atomic.Bool
	down  atomic.Bool

	mu  sync.Mutex // guards cut
	cut map[pair]bool
}

// pair of hosts by ip, the lesser first; with an empty first one, all cables of
// the second.
type pair [2]string

func pairOf(a, b string) pair { return pair{min(a, b), max(a, b)} }

func (r *router) SendPacket(p simnet.Packet) error {
	if r.noUDP.Load() || r.lost(host(p.From), host(p.To)) {
		return nil
	}
	return r.PerfectRouter.SendPacket(p)
}

// lost reports that nothing passes between two hosts now.
func (r *router) lost(a, b string) bool {
	if r.down.Load() {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cut[pair{"", a}] || r.cut[pair{"", b}] || r.cut[pairOf(a, b)]
}

func (r *router) set(p pair, cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut[p] = cut
}

func host(a net.Addr) string {
	name, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return name
}

// BlockUDP makes all packets vanish, or not; TCP works on.
func (n *Net) BlockUDP(blocked bool) { n.router.noUDP.Store(blocked) }

// Cut makes everything vanish, or not.
func (n *Net) Cut(cut bool) { n.router.down.Store(cut) }

// Isolate makes everything from and to the host at ip vanish, or not.
func (n *Net) Isolate(ip string, cut bool) { n.router.set(pair{"", ip}, cut) }

// Sever makes everything between two hosts vanish, or not.
func (n *Net) Sever(a, b string, cut bool) { n.router.set(pairOf(a, b), cut) }

// Listen opens one address, such as "10.0.0.1:7401", for packets and streams.
func (n *Net) Listen(address string) (net.PacketConn, net.Listener, error) {
	udp, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &Listener{net: n, address: address, conns: make(chan net.Conn), done: make(chan struct{})}
	n.listeners[address] = l
	return n.socketLocked(&net.UDPAddr{IP: net.ParseIP(udp.IP.String()), Port: udp.Port}), l, nil
}

// Network is how a machine at ip reaches the others.
func (n *Net) Network(ip string) link.Network {
	return link.Network{
		ListenPacket: func(context.Context) (net.PacketConn, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.nextPort++
			return n.socketLocked(&net.UDPAddr{IP: net.ParseIP(ip), Port: n.nextPort}), nil
		},
		DialTCP: func(ctx context.Context, address string) (net.Conn, error) { return n.dial(ctx, ip, address) },
	}
}

func (n *Net) socketLocked(addr *net.UDPAddr) net.PacketConn {
	late := &newcomer{router: n.router}
	one := &simnet.Simnet{Router: late}
	c := one.NewEndpoint(addr, simnet.NodeBiDiLinkSettings{Latency: n.latency})
	if err := one.Start(); err != nil {
		panic(err)
	}
	n.router.AddNode(late.addr, late.receiver)
	s := &socket{PacketConn: c, net: n}
	s.stop = sync.OnceFunc(func() {
		n.router.RemoveNode(late.addr)
		one.Close()
	})
	n.sockets[s] = true
	return s
}

// Sockets that are open, those of listeners too.
func (n *Net) Sockets() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.sockets)
}

// newcomer is a node that gets packets only once its links have started: others
// may send to its address already.
type newcomer struct {
	*router
	addr     net.Addr
	receiver simnet.PacketReceiver
}

// AddNode is called before the start.
func (n *newcomer) AddNode(addr net.Addr, r simnet.PacketReceiver) { n.addr, n.receiver = addr, r }

type socket struct {
	net.PacketConn
	net  *Net
	stop func()
}

func (s *socket) Close() error {
	err := s.PacketConn.Close()
	s.stop()
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	delete(s.net.sockets, s)
	return err
}

// SetReadBuffer and SetWriteBuffer keep quic-go from asking for kernel buffers.
func (s *socket) SetReadBuffer(int) error  { return nil }
func (s *socket) SetWriteBuffer(int) error { return nil }

func (n *Net) dial(ctx context.Context, from, address string) (net.Conn, error) {
	if n.router.lost(from, host(addr(address))) {
		<-ctx.Done() // a cut cable refuses nothing
		return nil, context.Cause(ctx)
	}
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errRefused{}}
	}
	return l.dial(ctx, from)
}

type errRefused struct{}

func (errRefused) Error() string { return "connection refused" }

// Listener is a net.Listener whose connections are pipes.
type Listener struct {
	net     *Net
	address string
	conns   chan net.Conn
	once    sync.Once
	done    chan struct{}
}

// NewListener makes one outside of any Net, for servers of a single process.
func NewListener() *Listener {
	return &Listener{address: "pipe", conns: make(chan net.Conn), done: make(chan struct{})}
}

// Dial connects to it, from no host in particular.
func (l *Listener) Dial(ctx context.Context) (net.Conn, error) { return l.dial(ctx, "") }

func (l *Listener) dial(ctx context.Context, from string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- l.cable(far, from):
		return l.cable(near, from), nil
	case <-l.done:
	case <-ctx.Done():
	}
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errRefused{}}
}

// cable is a pipe that can be cut: what is written then is lost, and with it the
// connection.
func (l *Listener) cable(c net.Conn, from string) net.Conn {
	if l.net == nil {
		return c
	}
	return &cable{Conn: c, net: l.net, a: from, b: host(addr(l.address))}
}

type cable struct {
	net.Conn
	net  *Net
	a, b string // hosts at its ends
	lost atomic.Bool
}

func (c *cable) Write(b []byte) (int, error) {
	if c.net.router.lost(c.a, c.b) {
		c.lost.Store(true)
		return len(b), nil
	}
	if c.lost.Load() {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

// Accept waits for a connection.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close refuses further ones.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	if l.net != nil {
		l.net.mu.Lock()
		defer l.net.mu.Unlock()
		if l.net.listeners[l.address] == l {
			delete(l.net.listeners, l.address)
		}
	}
	return nil
}

// Addr it listens on.
func (l *Listener) Addr() net.Addr { return addr(l.address) }

type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

// Close ends the network.
func (n *Net) Close() {
	n.mu.Lock()
	open := slices.Collect(maps.Keys(n.sockets))
	n.mu.Unlock()
	for _, s := range open {
		s.stop()
	}
}

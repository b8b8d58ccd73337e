package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/consul/consultest"
	"bivouac/edge/lease"
	"bivouac/edge/lease/leasetest"
	"bivouac/edge/link/linktest"
	"bivouac/edge/sandbox/twin"
	"bivouac/server/broker/keyring"
	"bivouac/server/broker/scripted"
	"bivouac/server/engine"
	"bivouac/server/policy"
)

// Latency of one packet between any two hosts.
const Latency = 5 * time.Millisecond

// Addresses of the hosts. Edges follow from 10.0.1.1.
const (
	brokerIP   = "10.0.0.1"
	serverIP   = "10.0.0.2"
	brokerAddr = brokerIP + ":7402"
	runnerAddr = serverIP + ":7401"
)

// Names of the two hosts that every world has, for Partition, Heal and Sever.
const (
	Server = "server"
	Broker = "broker"
)

// Options of a world. The zero value is a whole one.
type Options struct {
	// Script of the model provider, in the form of package scripted.
	Script string
	// Format of the wire between broker and provider. Default openai-chat.
	Format string
	// Commands that sandboxed shells know beside "sleep", by command line.
	Commands map[string]twin.Program
	// Limits of the engine; zero fields are its defaults.
	Limits engine.Limits
	// At is the time of the day, of UTC, when the world is made. Default midnight.
	At time.Duration
	// Quotas of the server; the zero value has none.
	Quotas policy.Quotas
	// NoFreezer: machines kill where others freeze.
	NoFreezer bool
}

// World is one running system. It is made in a bubble and for one test.
type World struct {
	// Log is what every part said, and when.
	Log *Log
	// Paths is who may reach what: everybody everything, until a test says else.
	Paths *consultest.Memory
	// Provider answers model calls; Tools is the upstream of http tools.
	Provider *scripted.Provider
	Tools    *Tools

	t       *testing.T
	opt     Options
	net     *linktest.Net
	dir     string
	elapsed lease.Elapsed
	began   time.Time

	public      *linktest.Listener // of the server that runs now
	serverSince time.Time
	keys        *keyring.Keyring
	egress      map[string]*linktest.Listener // by address, behind the broker

	server, broker part
	upstreams      []*process
	edges          map[string]*Edge
	people         map[string]*Person
	admin          *Person
}

// Test runs body in a bubble of virtual time with a world that can take turns.
// Worlds share nothing, so such tests run beside each other.
func Test(t *testing.T, o Options, body func(t *testing.T, w *World)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { body(t, New(t, o)) })
}

// New makes a world inside the bubble of the calling test and waits until its
// server is ready. It ends with the test.
func New(t *testing.T, o Options) *World {
	t.Helper()
	time.Sleep(o.At)
	w := &World{
		t: t, opt: o, net: linktest.New(Latency), dir: t.TempDir(), elapsed: leasetest.Monotonic(), began: time.Now(),
		Log: newLog(), Paths: consultest.NewMemory(), egress: map[string]*linktest.Listener{},
		edges: map[string]*Edge{}, people: map[string]*Person{},
	}
	// Cleanups run in reverse: the network goes last.
	t.Cleanup(w.net.Close)
	t.Cleanup(func() {
		if t.Failed() {
			w.Log.dump(t, w.began)
		}
	})
	t.Cleanup(w.end) // also of a world that was not made whole
	w.startUpstreams()
	w.makeKeys()
	w.bootstrap()
	w.startBroker()
	w.startServer()
	w.AwaitReady()
	w.giveRouteKey()
	return w
}

// end stops everything, the edges first.
func (w *World) end() {
	w.t.Helper()
	for _, e := range w.edges {
		e.end()
	}
	for _, p := range w.people {
		p.Close()
	}
	w.server.stop(w.t)
	w.broker.stop(w.t)
	if w.keys != nil {
		w.must(w.keys.Close())
	}
	for _, p := range w.upstreams {
		p.stop(w.t)
	}
}

func (w *World) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// path of a file or directory of this world, whose folder exists.
func (w *World) path(parts ...string) string {
	w.t.Helper()
	p := filepath.Join(append([]string{w.dir}, parts...)...)
	w.must(os.MkdirAll(filepath.Dir(p), 0o700))
	return p
}

// host is the ip of a part by its name.
func (w *World) host(name string) string {
	w.t.Helper()
	switch name {
	case Server:
		return serverIP
	case Broker:
		return brokerIP
	}
	e := w.edges[name]
	if e == nil {
		w.t.Fatalf("there is no host %q", name)
	}
	return e.ip
}

// Partition cuts hosts off from all others; nothing is refused, all is lost.
func (w *World) Partition(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.net.Isolate(w.host(name), true)
	}
}

// Heal ends partitions.
func (w *World) Heal(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.net.Isolate(w.host(name), false)
	}
}

// Sever cuts the cable between two hosts; Mend repairs it.
func (w *World) Sever(a, b string) { w.t.Helper(); w.net.Sever(w.host(a), w.host(b), true) }

// Mend repairs the cable between two hosts.
func (w *World) Mend(a, b string) { w.t.Helper(); w.net.Sever(w.host(a), w.host(b), false) }

// BlockUDP makes all packets vanish, or not: everything goes over TCP then.
func (w *World) BlockUDP(blocked bool) { w.net.BlockUDP(blocked) }

// Since the world began, for messages.
func (w *World) Since(at time.Time) time.Duration { return at.Sub(w.began) }

// step is how often Until looks.
const step = 10 * time.Millisecond

// Until lets virtual time pass until ok, and fails the test after limit.
func (w *World) Until(what string, limit time.Duration, ok func() bool) {
	w.t.Helper()
	for start := time.Now(); !ok(); time.Sleep(step) {
		if time.Since(start) > limit {
			w.t.Fatalf("after %v: not yet: %s", limit, what)
		}
	}
}

// SleepUntil lets virtual time pass until an instant, which must not be past.
func (w *World) SleepUntil(at time.Time) {
	w.t.Helper()
	d := time.Until(at)
	if d < 0 {
		w.t.Fatalf("%v is past already, by %v", w.Since(at), -d)
	}
	time.Sleep(d)
	synctest.Wait() // what is due at this instant has happened
}

// Exactly fails the test unless an instant is the wanted one to the microsecond,
// which is what the product stores.
func (w *World) Exactly(what string, got, want time.Time) {
	w.t.Helper()
	if d := got.Sub(want).Truncate(time.Microsecond); d != 0 {
		w.t.Errorf("%s at %v, want %v: %v", what, w.Since(got), w.Since(want), late(d))
	}
}

func late(d time.Duration) string {
	if d < 0 {
		return fmt.Sprintf("%v early", -d)
	}
	return fmt.Sprintf("%v late", d)
}

package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Decay of the probes that look for UDP again while the link runs over TCP.
const (
	probeFirst = 10 * time.Second
	probeMax   = time.Hour
	// steady is how long QUIC must have carried the link to be trusted anew. One
	// that fails sooner is a network that flaps: the probes go on where they were.
	steady = 5 * time.Minute
	// probeLook is how often Run asks whether a probe is due.
	probeLook = time.Minute
)

// probe remembers that UDP did not work and when to look again.
type probe struct {
	problem  string
	interval time.Duration
	at       time.Time
	// since is when QUIC began to carry the link.
	since time.Time
	// shunned QUIC is not raced: it connects, and then nothing gets through.
	shunned bool
}

// remember notes what a race showed about UDP.
func (c *Client) remember(winner *conn, quicErr error) {
	if winner == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if winner.transport == HTTP3 {
		c.carriedLocked()
		return
	}
	if c.probe.shunned {
		return // it was not asked
	}
	if c.probe.problem = c.overUDP("no answer before TCP had one"); quicErr != nil && !isCancelled(quicErr) {
		c.probe.problem = c.overUDP(quicErr.Error())
	}
	c.lostLocked()
}

// lostLocked schedules the first probe after QUIC stopped to carry the link.
func (c *Client) lostLocked() {
	p := &c.probe
	switch {
	case p.interval == 0 || !p.since.IsZero() && time.Since(p.since) > steady:
		p.interval = probeFirst
	case !p.since.IsZero():
		p.interval = min(2*p.interval, probeMax)
	}
	p.since = time.Time{}
	p.at = time.Now().Add(jittered(p.interval))
}

// carriedLocked notes that QUIC carries the link; how often it failed stays
// known until it has done so for a while.
func (c *Client) carriedLocked() {
	c.probe.problem, c.probe.shunned, c.probe.at = "", false, time.Time{}
	if c.probe.since.IsZero() {
		c.probe.since = time.Now()
	}
}

func (c *Client) upgraded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.carriedLocked()
}

// putOff doubles the wait after a probe that failed.
func (c *Client) putOff(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probe.problem = c.overUDP(err.Error())
	c.probe.interval = min(max(probeFirst, 2*c.probe.interval), probeMax)
	c.probe.at = time.Now().Add(jittered(c.probe.interval))
}

// Stalled drops a connection that is up and lets nothing through. When that was
// QUIC, as on a path that swallows large packets, the link goes over TCP until a
// probe has settled over QUIC again.
func (c *Client) Stalled(why string) {
	c.mu.Lock()
	if c.current != nil && c.current.transport == HTTP3 {
		c.probe.problem, c.probe.shunned = c.overUDP(why), true
		c.lostLocked()
	}
	c.mu.Unlock()
	c.Drop()
}

func (c *Client) shuns() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.probe.shunned
}

// overUDP names the port, which somebody may have to open.
func (c *Client) overUDP(why string) string { return "UDP port " + c.cfg.Address + ": " + why }

// QUICProblem says why the link runs over TCP; empty when it does not.
func (c *Client) QUICProblem() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.probe.problem
}

// NextProbe is how long to wait before Upgrade is worth a try; ok is false when
// the link does not run over TCP.
func (c *Client) NextProbe() (wait time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil || c.current.transport != HTTP2 {
		return 0, false
	}
	return max(0, time.Until(c.probe.at)), true
}

// ProbeNow makes a probe due at once: somebody opened a port.
func (c *Client) ProbeNow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probe.at = time.Time{}
}

func isCancelled(err error) bool {
	return errors.Is(err, context.Canceled)
}

// jittered spreads d over plus or minus a quarter.
func jittered(d time.Duration) time.Duration {
	return d*3/4 + time.Duration(rand.Int64N(int64(d/2)))
}

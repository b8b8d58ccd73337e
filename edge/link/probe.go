package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Decay of the probes that look for UDP again while the link runs over TCP.
const (
	probeFirst = 30 * time.Second
	probeMax   = time.Hour
)

// probe remembers that UDP did not work and when to look again.
type probe struct {
	problem  string
	interval time.Duration
	at       time.Time
}

// remember notes what a race showed about UDP.
func (c *Client) remember(winner *conn, quicErr error) {
	if winner == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if winner.transport == HTTP3 {
		c.probe = probe{}
		return
	}
	if c.probe.problem = c.overUDP("no answer before TCP had one"); quicErr != nil && !isCancelled(quicErr) {
		c.probe.problem = c.overUDP(quicErr.Error())
	}
	if c.probe.interval == 0 {
		c.probe.interval = probeFirst
	}
	c.probe.at = time.Now().Add(jittered(c.probe.interval))
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

// Upgrade tries QUIC beside the running TCP connection. When it works, new
// requests move over and running ones finish on the old connection; otherwise
// the next probe is put off twice as long. It reports whether the link moved.
func (c *Client) Upgrade(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	conn, err := c.dialQUIC(ctx)
	c.mu.Lock()
	if err != nil {
		c.probe.problem = c.overUDP(err.Error())
		c.probe.interval = min(max(probeFirst, 2*c.probe.interval), probeMax)
		c.probe.at = time.Now().Add(jittered(c.probe.interval))
	} else {
		c.probe = probe{}
	}
	c.mu.Unlock()
	if err != nil {
		return false, err
	}
	return true, c.install(conn)
}

func isCancelled(err error) bool {
	return errors.Is(err, context.Canceled)
}

// jittered spreads d over plus or minus a quarter.
func jittered(d time.Duration) time.Duration {
	return d*3/4 + time.Duration(rand.Int64N(int64(d/2)))
}

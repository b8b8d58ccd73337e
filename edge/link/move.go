package link

import (
	"context"
	"time"
)

type overKey struct{}

// over binds requests under ctx to one connection, which need not be the current
// one.
func over(ctx context.Context, conn *conn) context.Context {
	return context.WithValue(ctx, overKey{}, conn)
}

// SettleFunc makes a new connection one's own before it carries anything else:
// every request under its context goes over the new connection alone. Its error
// leaves the link where it was. The context stays bound for as long as it is used.
type SettleFunc func(ctx context.Context) error

// Redial connects anew, with the certificate of now: make before break. Once
// settle, which may be nil, is content, new requests move over, and running ones
// finish on the old connection.
func (c *Client) Redial(ctx context.Context, settle SettleFunc) error {
	conn, err := c.proven(ctx)
	if err != nil {
		return err
	}
	return c.moveTo(ctx, conn, settle)
}

// Upgrade tries QUIC beside the running TCP connection, and moves as Redial does.
// When QUIC does not get through, or settle fails over it, the next probe is put
// off twice as long. It reports whether the link moved.
func (c *Client) Upgrade(ctx context.Context, settle SettleFunc) (bool, error) {
	limit, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	conn, err := c.dialQUIC(limit)
	cancel()
	if err == nil {
		if err = c.prove(ctx, conn); err != nil {
			conn.close()
		}
	}
	if err == nil {
		err = c.moveTo(ctx, conn, settle)
	}
	if err != nil {
		c.putOff(err)
		return false, err
	}
	c.upgraded()
	return true, nil
}

// moveTo settles a connection and makes it the current one, or closes it.
func (c *Client) moveTo(ctx context.Context, conn *conn, settle SettleFunc) error {
	if settle != nil {
		if err := settle(over(ctx, conn)); err != nil {
			conn.close()
			return err
		}
	}
	return c.install(conn)
}

// Run looks for QUIC, with decay, while the link runs over TCP, until ctx ends.
// It is for links without a session of their own: who has one calls Upgrade when
// NextProbe says so.
func (c *Client) Run(ctx context.Context) error {
	for {
		wait, ok := c.NextProbe()
		if ok && wait == 0 {
			_, _ = c.Upgrade(ctx, nil) // QUICProblem says why not
			continue
		}
		if !ok {
			wait = probeMax
		}
		t := time.NewTimer(min(wait, probeLook))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
	}
}

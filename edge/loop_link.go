package edge

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// tickLink connects when there is no connection; otherwise it takes one delivery.
func (d *Daemon) tickLink(ctx context.Context) (bool, error) {
	c := d.line.get()
	if d.reading != nil && d.reading != c {
		d.reading.stream.Close() // its connection may end now
	}
	if c != d.reading && c != nil && !c.unread.CompareAndSwap(true, false) {
		d.reading = nil
		return true, nil // dropped before it was ever read
	}
	if d.reading = c; c == nil {
		if err := d.take(ctx, false); err != nil {
			return true, d.lost(ctx, err)
		}
		return true, nil
	}
	if m, ok := c.next(); ok {
		if !c.heard {
			c.heard = true
			d.backoff.Reset()
			d.problems.note("connection", nil)
		}
		return true, d.deliver(ctx, c, m)
	}
	err := protocol.FromConnect(c.stream.Err())
	if cause := context.Cause(c.ctx); cause != nil {
		err = cause
	}
	d.line.drop(c, err)
	if d.moving.Load() || d.line.get() != nil {
		return true, nil // the next connection took over, or is about to
	}
	return true, d.lost(ctx, err)
}

// lost decides what the end of a connection means.
func (d *Daemon) lost(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, errRelink):
		return nil // at once again
	case recoverable(d.cfg.State, err) && !d.leaving.Load():
		if err = d.recoverLink(ctx, err); err == nil {
			return nil // with a new certificate, at once
		}
	}
	if forgotten(err) {
		return d.fence(ctx, err)
	}
	wait := d.backoff.Next()
	if isCopy(err) {
		wait = max(d.cfg.BackoffMax, copyRetry) // by its owner only
	}
	d.problems.note("connection", err)
	d.log.InfoContext(ctx, "the link is down", "error", err, "transport", d.link.Transport())
	d.wakeLink.Wait(ctx, max(time.Millisecond, wait))
	return nil
}

// errRelink ends a connection that another one has replaced.
var errRelink = protocol.Errorf(protocol.CodeUnavailable, "the link moved to another connection")

// settle takes the next epoch over the connection that ctx is bound to, before
// anything else goes over it: make before break. It is a link.SettleFunc.
func (d *Daemon) settle(ctx context.Context) error {
	d.moving.Store(true)
	defer d.moving.Store(false)
	return d.take(ctx, true)
}

// take makes the next connection and then drops the one before it. Unless over
// says that one is to be replaced, it does nothing where there is one.
func (d *Daemon) take(ctx context.Context, over bool) error {
	if !d.taking.enter(ctx) {
		return context.Cause(ctx)
	}
	defer d.taking.leave()
	if !over && d.line.get() != nil {
		return nil // the link moved meanwhile
	}
	c, err := d.session(ctx)
	if err != nil {
		return err
	}
	c.unread.Store(true)
	if old := d.line.replace(c); old != nil {
		d.line.drop(old, errRelink) // its stream: calls that are under way end by themselves
	}
	d.log.InfoContext(ctx, "connected", "server", d.enrolment.Server, "transport", d.link.Transport(), "epoch", c.epoch)
	d.wakeRenew.Ring()
	d.wakeReport.Ring()
	d.wakeAnnounce.Ring()
	return nil
}

// session takes the connection row (epoch by compare-and-set), learns what the
// server knows of each lease, and attaches to the mailbox from its cursor. It
// returns when the server has said its first word there.
func (d *Daemon) session(ctx context.Context) (*connection, error) {
	take, err := d.cfg.State.Taking()
	if err != nil {
		return nil, err
	}
	all := d.table.all()
	facts := d.factsNow()
	sent := d.cfg.Elapsed()
	res, err := call(ctx, d.client.Connect, &runnerv1.ConnectRequest{
		CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(),
		BootNonce: d.boot, LastEpoch: take.LastEpoch, LastNonce: take.LastNonce, TakeNonce: take.Nonce, Facts: facts, Held: held(all),
	})
	if err != nil {
		return nil, err
	}
	if err := d.cfg.State.Taken(take, res.GetEpoch()); err != nil {
		return nil, err
	}
	d.setClock(time.UnixMicro(res.GetServerTimeUs()))
	d.announced.Store(true) // before the look: who changes them takes it back after the change
	if !proto.Equal(facts, d.factsNow()) {
		d.announced.Store(false)
	}
	d.rememberBroker(res.GetBrokerAddress())
	d.judge(all, sent, res.GetLeases())
	return d.attach(ctx, res.GetEpoch(), d.mailbox.resume(res.GetMailboxCursor()))
}

func (d *Daemon) attach(ctx context.Context, epoch, after int64) (*connection, error) {
	c := &connection{epoch: epoch}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.quiet = time.AfterFunc(callTimeout, func() {
		d.line.drop(c, protocol.Errorf(protocol.CodeUnavailable, "the server was silent for too long"))
		d.link.Stalled("the server was silent")
	})
	var err error
	c.stream, err = d.client.Attach(c.ctx, &runnerv1.AttachRequest{Epoch: epoch, Cursor: after})
	if err == nil && !c.hear() {
		if err = c.stream.Err(); err == nil {
			err = protocol.Errorf(protocol.CodeUnavailable, "the server ended the mailbox's stream at once")
		}
		c.stream.Close()
	}
	if err == nil {
		return c, nil
	}
	if cause := context.Cause(c.ctx); cause != nil {
		err = cause
	}
	d.line.drop(c, nil)
	return nil, protocol.FromConnect(err)
}

// rememberBroker keeps the newest address for supervisors and restarts.
func (d *Daemon) rememberBroker(address string) {
	if address == "" || *d.brokerSaid.Swap(&address) == address {
		return
	}
	e := d.enrolment
	e.Broker = address
	if err := d.cfg.State.SaveEnrolment(e); err != nil {
		d.problems.note("state", err)
	}
}

// broker is the address that supervisors dial: the owner's override, or the
// server's word.
func (d *Daemon) broker() string {
	if own := d.rules.Load().policy.Broker; own != "" {
		return own
	}
	return *d.brokerSaid.Load()
}

// deliver deals with one message of the mailbox.
func (d *Daemon) deliver(ctx context.Context, c *connection, m *runnerv1.AttachResponse) error {
	if m.GetHeartbeat() != nil || !d.mailbox.begin(m.GetSeq()) {
		return nil
	}
	done := func() {
		d.mailbox.done(m.GetSeq())
		d.wakeReport.Ring()
	}
	switch k := m.GetKind().(type) {
	case *runnerv1.AttachResponse_Offer:
		if err := d.offer(ctx, c, k.Offer); err != nil {
			d.mailbox.miss(m.GetSeq()) // it comes again after the next connect
			d.line.drop(c, err)
			if d.moving.Load() || d.line.get() != nil {
				return nil
			}
			return d.lost(ctx, err)
		}
	case *runnerv1.AttachResponse_Stop:
		d.stopAttempt(k.Stop)
	case *runnerv1.AttachResponse_ToolAnswer:
		if d.answer(k.ToolAnswer, done) {
			return nil // the op says when it is done
		}
	case *runnerv1.AttachResponse_Fenced:
		return d.fence(ctx, protocol.Errorf(protocol.CodePermissionDenied, "the server revoked this runner: %s", k.Fenced.GetReason()))
	}
	done()
	return nil
}

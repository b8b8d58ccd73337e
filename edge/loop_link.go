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
	if c == nil {
		return true, d.connect(ctx)
	}
	if c.stream.Receive() {
		c.quiet.Reset(silence)
		if !c.heard {
			c.heard = true
			d.backoff.Reset()
			d.problems.note("connection", nil)
		}
		return true, d.deliver(ctx, c, c.stream.Msg())
	}
	err := protocol.FromConnect(c.stream.Err())
	if cause := context.Cause(c.ctx); cause != nil {
		err = cause
	}
	c.stream.Close()
	d.line.drop(c, err)
	return true, d.lost(ctx, err)
}

// lost decides what the end of a connection means.
func (d *Daemon) lost(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, errRelink):
		return nil // at once again
	case forgotten(err):
		return d.fence(ctx, err)
	}
	d.problems.note("connection", err)
	d.log.InfoContext(ctx, "the link is down", "error", err, "transport", d.link.Transport())
	sleep(ctx, d.backoff.Next())
	return nil
}

// errRelink ends a connection that should be made anew at once.
var errRelink = protocol.Errorf(protocol.CodeUnavailable, "the link moves to another connection")

// relink takes a new epoch, over whatever transport the link has now.
func (d *Daemon) relink() {
	if c := d.line.get(); c != nil {
		d.line.drop(c, errRelink)
	}
}

// connect takes the connection row (epoch by compare-and-set), learns what the
// server knows of each lease, and attaches to the mailbox from its cursor.
func (d *Daemon) connect(ctx context.Context) error {
	all := d.table.all()
	facts := d.factsNow()
	sent := d.cfg.Elapsed()
	res, err := call(ctx, d.client.Connect, &runnerv1.ConnectRequest{
		CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(),
		BootNonce: d.boot, LastEpoch: d.cfg.State.Epoch(), Facts: facts, Held: held(all),
	})
	if err != nil {
		return d.lost(ctx, err)
	}
	if err := d.cfg.State.SaveEpoch(res.GetEpoch()); err != nil {
		return err
	}
	d.announced.Store(proto.Equal(facts, d.factsNow()))
	d.rememberBroker(res.GetBrokerAddress())
	d.judge(all, sent, res.GetLeases())
	d.mailbox.resume(res.GetMailboxCursor())
	return d.attach(ctx, res)
}

func (d *Daemon) attach(ctx context.Context, res *runnerv1.ConnectResponse) error {
	c := &connection{epoch: res.GetEpoch()}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.quiet = time.AfterFunc(silence, func() {
		c.cancel(protocol.Errorf(protocol.CodeUnavailable, "the server was silent for %s", silence))
		d.link.Drop()
	})
	var err error
	c.stream, err = d.client.Attach(c.ctx, &runnerv1.AttachRequest{Epoch: c.epoch, Cursor: max(0, res.GetMailboxCursor()-1)})
	if err != nil {
		c.quiet.Stop()
		c.cancel(nil)
		return d.lost(ctx, protocol.FromConnect(err))
	}
	d.line.set(c)
	d.log.InfoContext(ctx, "connected", "server", d.enrolment.Server, "transport", d.link.Transport(), "epoch", c.epoch)
	d.wakeRenew.set()
	d.wakeReport.set()
	d.wakeAnnounce.set()
	return nil
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
	if d.policy.Broker != "" {
		return d.policy.Broker
	}
	return *d.brokerSaid.Load()
}

// judge takes the server's verdicts on leases, in answer to a request sent at
// sent that named all of them.
func (d *Daemon) judge(all []*attempt, sent time.Duration, verdicts []*runnerv1.LeaseVerdict) {
	by := map[string]*runnerv1.LeaseVerdict{}
	for _, v := range verdicts {
		by[v.GetAttemptId()] = v
	}
	for _, a := range all {
		if a.lost.Load() {
			continue
		}
		v := by[a.id.String()]
		if !v.GetAlive() {
			d.cutOff(a, protocol.Errorf(protocol.CodeStaleFence, "the server took the lease of attempt %s back", a.id))
			continue
		}
		if v.GetTerms() != nil {
			a.grant(sent, v.GetTerms())
			d.pass(a, v.GetTerms())
		}
	}
}

// deliver deals with one message of the mailbox.
func (d *Daemon) deliver(ctx context.Context, c *connection, m *runnerv1.AttachResponse) error {
	if m.GetHeartbeat() != nil || !d.mailbox.begin(m.GetSeq()) {
		return nil
	}
	done := func() {
		d.mailbox.done(m.GetSeq())
		d.wakeReport.set()
	}
	switch k := m.GetKind().(type) {
	case *runnerv1.AttachResponse_Offer:
		if err := d.offer(ctx, c, k.Offer); err != nil {
			d.line.drop(c, err) // not dealt with: it comes again after the next connect
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

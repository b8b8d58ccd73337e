package edge

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// tickLink makes a session when there is none; otherwise it takes one delivery.
func (d *Daemon) tickLink(ctx context.Context) (bool, error) {
	s := d.line.get()
	if s == nil {
		return true, d.connect(ctx)
	}
	if s.stream.Receive() {
		s.quiet.Reset(silence)
		if !s.heard {
			s.heard = true
			d.backoff.Reset()
			d.problems.note("connection", nil)
		}
		return true, d.deliver(ctx, s, s.stream.Msg())
	}
	err := protocol.FromConnect(s.stream.Err())
	if cause := context.Cause(s.ctx); cause != nil {
		err = cause
	}
	s.stream.Close()
	d.line.drop(s, err)
	return true, d.lost(ctx, err)
}

// lost decides what the end of a session means.
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

// errRelink ends a session that should be made anew at once.
var errRelink = protocol.Errorf(protocol.CodeUnavailable, "the link moves to another connection")

// relink makes a new session, on whatever connection the link has now.
func (d *Daemon) relink() {
	if s := d.line.get(); s != nil {
		d.line.drop(s, errRelink)
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
	s := &session{epoch: res.GetEpoch()}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.quiet = time.AfterFunc(silence, func() {
		s.cancel(protocol.Errorf(protocol.CodeUnavailable, "the server was silent for %s", silence))
		d.link.Drop()
	})
	var err error
	s.stream, err = d.client.Attach(s.ctx, &runnerv1.AttachRequest{Epoch: s.epoch, Cursor: max(0, res.GetMailboxCursor()-1)})
	if err != nil {
		s.quiet.Stop()
		s.cancel(nil)
		return d.lost(ctx, protocol.FromConnect(err))
	}
	d.line.set(s)
	d.log.InfoContext(ctx, "connected", "server", d.enrolment.Server, "transport", d.link.Transport(), "epoch", s.epoch)
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
func (d *Daemon) deliver(ctx context.Context, s *session, m *runnerv1.AttachResponse) error {
	if m.GetHeartbeat() != nil || !d.mailbox.begin(m.GetSeq()) {
		return nil
	}
	done := func() {
		d.mailbox.done(m.GetSeq())
		d.wakeReport.set()
	}
	switch k := m.GetKind().(type) {
	case *runnerv1.AttachResponse_Offer:
		if err := d.offer(ctx, s, k.Offer); err != nil {
			d.line.drop(s, err) // not dealt with: it comes again after the next connect
			return d.lost(ctx, err)
		}
	case *runnerv1.AttachResponse_Stop:
		d.stopAttempt(k.Stop)
	case *runnerv1.AttachResponse_ToolAnswer:
		if d.answer(k.ToolAnswer, done) {
			return nil // the op says when it is done
		}
	case *runnerv1.AttachResponse_Fenced:
		return d.fence(ctx, protocol.Errorf(protocol.CodePermissionDenied, "the server revoked this runner: %s; enrol again with a new code: bivouac-edge join", k.Fenced.GetReason()))
	}
	done()
	return nil
}

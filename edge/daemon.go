package edge

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/runnerv1/runnerv1connect"
	"bivouac/edge/sandbox"
	"bivouac/edge/state"
)

// Daemon is one runner. New reads its state; Run works until its context ends
// or the runner is fenced.
type Daemon struct {
	cfg       Config
	log       *slog.Logger
	rules     atomic.Pointer[rules] // of edge.hcl, in force
	enrolment state.Enrolment
	boot      string // nonce of this start
	link      *link.Client
	client    runnerv1connect.RunnerServiceClient

	table   table
	line    line
	mailbox mailbox
	actions *actionLog
	keys    keys // questions that wait for the owner, of actions
	// turnKeys are those of turns, which are not claimed before.
	turnKeys byAttempt[*turnKey]
	turns    turns
	awaiting waiting
	// unwatched are folders of awaited turns, for who watches them.
	unwatched chan string
	ops       op.Runner

	ready      atomic.Bool // recovery is done
	paused     atomic.Bool
	leaving    atomic.Bool                    // the owner asked the server to forget this machine
	brokerSaid atomic.Pointer[string]         // by the server, last
	facts      atomic.Pointer[runnerv1.Facts] // without paused
	seen       atomic.Pointer[sandbox.Report] // of the sandbox
	backends   backends                       // the sandbox in use, and those before it
	lack       atomic.Pointer[string]         // what turns in sandboxes lack here, as told
	announced  atomic.Bool                    // the server knows the newest facts
	problems   problems
	probes     atomic.Int64 // for QUIC, made so far

	sawElapsed time.Duration // watch loop only
	sawClock   time.Time
	reading    *connection   // link loop only: whose stream is open here
	recovered  time.Duration // link loop only: when the certificate was recovered
	lookAt     time.Duration // look loop only: when the sandbox is looked at again; 0: not
	lookIn     time.Duration // look loop only: the wait until then

	// askedToLeave: its owner did so once, and the answer may have been lost.
	askedToLeave atomic.Bool

	backoff                             link.Backoff
	taking                              single      // a new epoch
	offering                            single      // of facts, by the rules in force
	moving                              atomic.Bool // one is taken beside the last
	wakeRenew, wakeReport, wakeAnnounce op.Bell
	wakeLink, wakeProbe, wakeRules      op.Bell
	renewed                             time.Duration // when the last renewal was sent; the renew loop's own
	end                                 chan error    // ends Run: fenced, left
}

// New reads and checks everything on disk. It starts nothing.
func New(cfg Config) (*Daemon, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Daemon{
		cfg: cfg, log: cfg.Log,
		backoff: link.Backoff{Base: cfg.BackoffBase, Max: cfg.BackoffMax},
		taking:  make(single, 1), offering: make(single, 1),
		wakeRenew: op.NewBell(), wakeReport: op.NewBell(), wakeAnnounce: op.NewBell(), wakeLink: op.NewBell(), wakeProbe: op.NewBell(), wakeRules: op.NewBell(),
		end: make(chan error, 1), unwatched: make(chan string, mostUnwatched),
	}
	var b [16]byte
	rand.Read(b[:])
	d.boot = hex.EncodeToString(b[:])
	r, err := readRules(cfg.State)
	if err != nil {
		return nil, err
	}
	d.rules.Store(r)
	d.backends.use(cfg.Sandbox)
	if d.enrolment, err = cfg.State.Enrolment(); err != nil {
		return nil, err
	}
	d.brokerSaid.Store(&d.enrolment.Broker)
	d.facts.Store(factsOf(r.policy, sandbox.Report{Problem: "not looked at yet"}))
	d.paused.Store(cfg.State.Paused())
	if d.link, err = dialler(cfg.State, d.enrolment.Server, cfg.Network); err != nil {
		return nil, err
	}
	watch := &progress{alive: func() bool { return d.link.Transport() != "" }, stalled: func() {
		d.log.Warn("the server answers no call although the connection lives; the link is made anew", "transport", d.link.Transport())
		d.link.Stalled("calls were not answered")
	}}
	d.client = runnerv1connect.NewRunnerServiceClient(d.link, d.link.URL(), connect.WithInterceptors(watch.intercept()))
	return d, nil
}

// dialler is the link of an enrolled runner. A certificate that is lost is recovered
// over it: the key is what the machine is known by.
func dialler(dir *state.Dir, server string, network link.Network) (*link.Client, error) {
	root, err := dir.Root()
	if err != nil {
		return nil, err
	}
	if _, err := dir.Key(false); err != nil {
		return nil, err
	}
	return link.NewClient(link.Config{
		Address:     server,
		Trust:       link.Trust{Role: identity.RoleServer, Root: root, Now: dir.Now},
		Certificate: dir.Certificate,
		Network:     network,
	})
}

// loop is one repeated step. tick reports whether there may be more to do at
// once; otherwise the loop waits for wake or idle.
type loop struct {
	name string
	tick func(context.Context) (worked bool, err error)
	wake op.Bell
	idle func() time.Duration
}

func (d *Daemon) loops() []loop {
	every := func(t time.Duration) func() time.Duration { return func() time.Duration { return t } }
	return []loop{
		{"link", d.tickLink, nil, every(0)},
		{"renew", d.tickRenew, d.wakeRenew, d.renewIn},
		{"report", d.tickReport, d.wakeReport, every(0)},
		{"watch", d.tickWatch, nil, every(watchEvery)},
		{"rules", d.tickRules, d.wakeRules, every(rulesEvery)},
		{"announce", d.tickAnnounce, d.wakeAnnounce, every(0)},
		{"certificate", d.tickCertificate, nil, d.certificateIn},
		{"probe", d.tickProbe, d.wakeProbe, d.probeIn},
		{"look", d.tickLook, nil, every(lookAgain)},
	}
}

// Run works until ctx ends, which is no error, or until the server fenced this
// runner, forgot it, its owner made it leave, or its journal failed. Supervisors go
// on without it.
func (d *Daemon) Run(ctx context.Context) error {
	release, err := d.cfg.State.Lock()
	if err != nil {
		return err
	}
	defer release()
	var control net.Listener
	if d.cfg.Control != nil {
		if control, err = d.cfg.Control(); err != nil {
			return err
		}
		defer control.Close()
	}
	defer d.tidy()
	defer d.link.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	g, gctx := errgroup.WithContext(ctx)
	if err := d.ops.Begin(gctx); err != nil {
		return err
	}
	g.Go(func() error { d.ops.Wait(); return nil })
	if err := d.recover(gctx); err != nil {
		cancel(err)
		_ = g.Wait() // ends with the cause that it was given
		return err
	}
	defer d.actions.close()
	if control != nil {
		g.Go(func() error { return d.serveControl(gctx, control) })
	}
	if d.cfg.Metrics != nil {
		g.Go(func() error { return d.page().Serve(gctx, d.cfg.Metrics) })
	}
	for _, l := range d.loops() {
		g.Go(func() error { return d.run(gctx, l) })
	}
	if d.cfg.WatchRules != nil {
		g.Go(func() error { return d.cfg.WatchRules(gctx, d.cfg.State.Policy(), d.wakeRules.Ring) })
	}
	if d.cfg.WatchAttempts != nil {
		g.Go(func() error { return d.cfg.WatchAttempts(gctx, d.unwatched, d.awaitedChanged) })
	}
	g.Go(func() error { return d.watchJournal(gctx) })
	g.Go(func() error {
		select {
		case err := <-d.end:
			return err
		case <-gctx.Done():
			return nil
		}
	})
	err = g.Wait()
	if errors.Is(err, errLeft) {
		return nil
	}
	return err
}

// run schedules one loop until ctx ends.
func (d *Daemon) run(ctx context.Context, l loop) error {
	backoff := link.Backoff{Base: d.cfg.BackoffBase, Max: d.cfg.BackoffMax}
	for ctx.Err() == nil {
		worked, err := l.tick(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			var last *finalError
			if errors.As(err, &last) {
				return last.err
			}
			d.problems.note(l.name, err)
			d.log.WarnContext(ctx, "a loop failed and tries again", "loop", l.name, "error", err)
			op.Sleep(ctx, backoff.Next())
		default:
			d.problems.note(l.name, nil)
			backoff.Reset()
			if !worked {
				l.wake.Wait(ctx, l.idle())
			}
		}
	}
	return nil
}

// finalError ends the daemon: another try cannot help.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

// stop ends Run with err, from an op.
func (d *Daemon) stop(err error) {
	select {
	case d.end <- err:
	default:
	}
}

// recover takes up what an earlier daemon left: facts, device actions, turns.
func (d *Daemon) recover(ctx context.Context) error {
	if r := d.rules.Load(); r.source != nil {
		if err := d.cfg.State.SaveGoodPolicy(r.source); err != nil {
			return err
		}
		d.noteMissing(ctx, r.missing)
	}
	d.observe(ctx)
	d.sweep(ctx)
	if err := d.recoverActions(ctx); err != nil {
		return err
	}
	if err := d.recoverTurns(ctx); err != nil {
		return err
	}
	d.ready.Store(true)
	return nil
}

// sweep ends sandboxes of attempts that have no directory any more: their
// supervisor was killed and could not clean up (INV-18). Nothing is claimed yet.
func (d *Daemon) sweep(ctx context.Context) {
	if d.cfg.Sandbox == nil || d.cfg.Supervisors == nil {
		return
	}
	dirs, err := d.cfg.State.Attempts()
	var keep []string
	for _, a := range dirs {
		keep = append(keep, a.ID.String())
	}
	if err == nil {
		_, err = d.cfg.Sandbox.Sweep(ctx, keep)
	}
	if err != nil {
		d.problems.note("cleanup", err)
		d.log.WarnContext(ctx, "sandboxes of an earlier start are left", "error", err)
	}
}

// tidy leaves nothing behind that serves sandboxes to come. Supervisors that go on
// do the same at their end. INV-18.
func (d *Daemon) tidy() {
	for _, b := range d.backends.every() {
		if err := b.Tidy(context.Background()); err != nil {
			d.log.Warn("what sandboxes were made in is left", "error", err)
		}
	}
}

var errLeft = protocol.Errorf(protocol.CodeCancelled, "the runner has left its server")

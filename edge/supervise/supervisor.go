package supervise

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/fault"
	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/sandbox/sized"
)

// phase of a supervisor; it only goes forward.
type phase int

const (
	phaseIdle    phase = iota // no work yet
	phaseRunning              // work was handed over
	phaseLost                 // authority is over; nothing runs; no result was made
	phaseDone                 // the result is journalled
)

// Why an attempt ends before its worker has finished.
var (
	errLost       = protocol.Errorf(protocol.CodeLeaseExpired, "the lease was not renewed in time: everything the attempt ran was ended")
	errDeadline   = protocol.Errorf(protocol.CodeDeadlineExceeded, "the attempt's time is over")
	errStalled    = protocol.Errorf(protocol.CodeUnavailable, "the worker made no progress and was ended")
	errParked     = protocol.Errorf(protocol.CodeApprovalRequired, "a person is asked: the attempt ends, and another goes on after the decision")
	errHandedOver = protocol.Errorf(protocol.CodeUnavailable, "The scheduler of the machine ended the allocation before the turn had finished.")
	errRetention  = protocol.Errorf(protocol.CodeLeaseExpired, "the lease was not renewed within its retention")
	errOver       = errors.New("the attempt is over")
)

// supervisor of one attempt.
type supervisor struct {
	cfg      Config
	lease    *lease.Lease
	records  *records
	requests *requests
	live     *live
	short    *short
	// recovered: an earlier supervisor worked here, and this one only has its records.
	recovered bool
	// begun, stopped, handed and retired are closed once; quiet is closed when the
	// attempt has no process and will have none.
	begun, stopped, handed, retired, quiet mark
	renewed                                chan struct{} // has a token after new terms

	mu       sync.Mutex // guards the fields below
	phase    phase
	work     *handover
	stopWhy  string
	deadline time.Duration // by the lease's clock
	attempt  *attempt
}

// handover is the work as it was given.
type handover struct {
	digest string
	broker string
	turn   *runnerv1.TurnWork
	// until is the work's own deadline, by the server's clock.
	until time.Time
	// trace context of the turn (W3C), for the code that it runs.
	trace string
	terms *runnerv1.LeaseTerms
}

// mark is set at most once, and stays.
type mark struct {
	once sync.Once
	c    chan struct{}
}

func newMark() mark         { return mark{c: make(chan struct{})} }
func (m *mark) fire()       { m.once.Do(func() { close(m.c) }) }
func (m *mark) fired() bool { return isClosed(m.c) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Run supervises one attempt until its result is acknowledged, its retention is
// over, or ctx ends; then it leaves no process and no loop behind.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	recs, err := openRecords(cfg.journalDir(), cfg.StatusCommand)
	if err != nil {
		return err
	}
	defer recs.journal.Close()
	defer func() {
		// A supervisor that is stopped keeps its files, for the daemon to remove.
		if err := errors.Join(sized.Release(cfg.filesDir()), cfg.Backend.Tidy(context.WithoutCancel(ctx))); err != nil {
			cfg.Log.Warn("what sandboxes were made in is left", "error", err)
		}
	}()
	s := &supervisor{
		cfg: cfg, lease: lease.NewLease(cfg.Elapsed), records: recs, requests: newRequests(), live: newLive(), short: newShort(),
		begun: newMark(), stopped: newMark(), handed: newMark(), retired: newMark(), quiet: newMark(), renewed: make(chan struct{}, 1),
	}
	if err := s.recover(ctx); err != nil {
		return err
	}
	listener := cfg.Listener
	if listener == nil {
		if listener, err = Listen(cfg.Dir); err != nil {
			return err
		}
		defer os.Remove(filepath.Join(cfg.Dir, SocketName))
	}
	ctx, over := context.WithCancelCause(ctx)
	defer over(errOver)
	g, ctx := errgroup.WithContext(ctx)
	server := &http.Server{Handler: s.handler(ctx), Protocols: plainHTTP2(), ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug)}
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		// The last answer, to the acknowledgement of the result, is still on its way.
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 250*time.Millisecond)
		defer cancel()
		server.Shutdown(grace)
		return server.Close()
	})
	g.Go(func() error { return recs.runSync(ctx) })
	g.Go(func() error { return s.runClock(ctx) })
	g.Go(func() error { s.awaitHandOver(ctx); return nil })
	g.Go(func() error {
		defer over(errOver)
		return s.runAttempt(ctx)
	})
	return g.Wait()
}

// recover finds what an earlier supervisor of this directory left. An attempt
// without a result was interrupted; it is never begun again here (INV-14). Its
// sandboxes died with it, save one that was being made: nothing is said before
// that is gone too (INV-18).
func (s *supervisor) recover(ctx context.Context) error {
	if err := s.cfg.Backend.Clear(ctx, s.cfg.Attempt.String()); err != nil {
		return err
	}
	if err := sized.Release(s.cfg.filesDir()); err != nil {
		return err
	}
	started, result, _ := s.records.state()
	if !started && !s.cfg.Recover {
		return nil
	}
	s.phase, s.recovered = phaseDone, true
	s.quiet.fire()
	if result > 0 {
		return nil
	}
	s.cfg.Log.Warn("an earlier supervisor of this attempt ended before its worker had finished")
	return s.conclude(&runnerv1.Result{Status: protocol.ResultFailed, Code: protocol.ResultInterrupted,
		Message: "The supervisor of the attempt, or its machine, ended before the turn had finished."})
}

// runAttempt waits for work, does it, and waits until somebody has the result.
func (s *supervisor) runAttempt(ctx context.Context) error {
	if !s.recovered {
		wait := time.NewTimer(s.cfg.BeginIn)
		defer wait.Stop()
		select {
		case <-s.begun.c:
		case <-s.stopped.c:
			s.quiet.fire()
			return nil
		case <-s.handed.c:
			if !s.begun.fired() {
				s.cfg.Log.Info("the allocation ends before the attempt has begun")
				s.quiet.fire()
				return nil
			}
		case <-wait.C:
			if s.cfg.HandOver != nil {
				s.cfg.Log.Info("bivouac-edge handed no work over, and this supervisor ends", "within", s.cfg.BeginIn)
				return nil
			}
			return protocol.Errorf(protocol.CodeUnavailable, "no work was handed over to the supervisor within %s", s.cfg.BeginIn)
		case <-ctx.Done():
			return nil
		}
		if err := s.perform(ctx); err != nil {
			return err
		}
	}
	return s.linger(ctx)
}

// perform runs the attempt and journals its result, unless authority was lost.
func (s *supervisor) perform(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errOver)
	a, err := s.take(ctx, cancel)
	if err != nil {
		s.quiet.fire()
		return s.conclude(&runnerv1.Result{Status: protocol.ResultFailed, Code: string(protocol.CodeOf(err)), Message: messageOf(err)})
	}
	if s.stopped.fired() { // before there was anything to end
		a.end(protocol.Errorf(protocol.CodeCancelled, "%s", s.stopReason()))
	}
	if s.handed.fired() {
		a.end(errHandedOver)
	}
	result := a.run(ctx)
	s.quiet.fire()
	if errors.Is(context.Cause(ctx), errLost) && a.outcome() == nil {
		s.cfg.Log.Warn("the attempt lost its authority", "retention_left_ms", s.lease.Retention().Milliseconds())
		s.advance(phaseLost)
		return nil
	}
	return s.conclude(result)
}

// take makes the attempt of what was handed over. It holds the lock, so that no
// renewal falls between the capability that it reads and the next.
func (s *supervisor) take(ctx context.Context, cancel context.CancelCauseFunc) (*attempt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, err := newAttempt(s, s.work)
	if err != nil {
		return nil, err
	}
	a.cancel, a.ending = cancel, ctx.Done()
	s.attempt = a
	return a, nil
}

// conclude journals the result, once.
func (s *supervisor) conclude(r *runnerv1.Result) error {
	if _, have, _ := s.records.state(); have > 0 {
		return nil
	}
	_, err := s.records.append(&runnerv1.Record{Kind: &runnerv1.Record_Result{Result: r}}, true)
	if err != nil {
		return err
	}
	s.cfg.Log.Info("the attempt has its result", "status", r.Status, "code", r.Code)
	s.advance(phaseDone)
	fault.Here(fault.SuperviseResult)
	return nil
}

// stopLinger is how long the result of a stopped attempt waits for a reader.
const stopLinger = 30 * time.Second

// handOverLinger is how long who ends the allocation has to wait for the daemon to take
// the records: it kills after twice that.
const handOverLinger = 15 * time.Second

// awaitHandOver ends the attempt when its allocation is to end.
func (s *supervisor) awaitHandOver(ctx context.Context) {
	select {
	case <-s.cfg.HandOver:
		s.cfg.Log.Warn("the allocation is to end: the attempt is interrupted and goes on from its last checkpoint in another one")
		s.mu.Lock()
		s.handed.fire() // from now on nothing begins
		s.mu.Unlock()
		s.end(errHandedOver)
	case <-ctx.Done():
	}
}

// linger keeps the records readable: until the result is acknowledged, or until
// retention is over, when the server has given the work to another.
func (s *supervisor) linger(ctx context.Context) error {
	stopped, handed, late := s.stopped.c, s.handed.c, (<-chan time.Time)(nil)
	over := s.cleanUp
	for {
		changed := s.records.wait()
		if _, result, acked := s.records.state(); result > 0 && acked >= result {
			return s.cleanUp(ctx)
		}
		select {
		case <-changed:
		case <-stopped:
			stopped = nil
			if err := s.conclude(s.interruptedResult(errLost)); err != nil {
				return err
			}
			t := time.NewTimer(stopLinger)
			defer t.Stop()
			late = t.C
		case <-handed:
			handed = nil
			if _, result, _ := s.records.state(); result == 0 {
				return nil // its authority was lost before: no result is made up
			}
			t := time.NewTimer(handOverLinger)
			defer t.Stop()
			late, over = t.C, func(context.Context) error { return nil } // the daemon has its files
		case <-late:
			return over(ctx)
		case <-s.retired.c:
			return errors.Join(s.conclude(s.interruptedResult(errRetention)), s.cleanUp(ctx))
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *supervisor) interruptedResult(why *protocol.Error) *runnerv1.Result {
	return &runnerv1.Result{Status: protocol.ResultFailed, Code: protocol.ResultInterrupted, Message: why.Message}
}

func (s *supervisor) advance(p phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase = max(s.phase, p)
}

// end asks the running attempt to end with cause.
func (s *supervisor) end(cause error) {
	s.mu.Lock()
	a := s.attempt
	s.mu.Unlock()
	if a != nil {
		a.end(cause)
	}
}

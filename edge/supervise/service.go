package supervise

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/supervise/protocol/supervisev1"
	"bivouac/edge/supervise/protocol/supervisev1/supervisev1connect"
)

// service is the daemon's side of a supervisor. ctx ends with the supervisor, so
// that no stream outlives it.
type service struct {
	*supervisor
	ctx context.Context
}

var _ supervisev1connect.SuperviseServiceHandler = service{}

func (s *supervisor) handler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(supervisev1connect.NewSuperviseServiceHandler(service{s, ctx}, connect.WithInterceptors(coded(s.cfg.Log)), connect.WithReadMaxBytes(64<<20)))
	return mux
}

// Hello says who answers and how far it is.
func (s service) Hello(context.Context, *supervisev1.HelloRequest) (*supervisev1.HelloResponse, error) {
	_, result, acked := s.records.state()
	res := &supervisev1.HelloResponse{
		AttemptId: s.cfg.Attempt.String(), BootNonce: s.cfg.BootNonce, Pid: int32(os.Getpid()),
		JournalSeq: s.records.journal.Last(), AckedSeq: acked,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	res.Begun = s.phase != phaseIdle
	res.Finished = result > 0 || s.phase >= phaseLost
	if s.work != nil {
		res.Fence = s.work.terms.GetFence()
	}
	res.Frozen = s.phase == phaseRunning && s.attempt != nil && s.attempt.held()
	return res, nil
}

// Begin takes the work, once. The same work again is harmless.
func (s service) Begin(_ context.Context, req *supervisev1.BeginRequest) (*supervisev1.BeginResponse, error) {
	w, err := readWork(req)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.work != nil && s.work.digest == w.digest && s.work.terms.GetFence() == w.terms.GetFence():
		return &supervisev1.BeginResponse{}, nil
	case s.work != nil:
		return nil, protocol.Errorf(protocol.CodeConflict, "attempt %s has begun with other work", s.cfg.Attempt)
	case s.phase != phaseIdle || s.stopped.fired() || s.handed.fired():
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "attempt %s has ended already: a supervisor does not begin twice", s.cfg.Attempt)
	}
	now := s.lease.Now()
	s.lease.Renew(now, millis(w.terms.GetAuthorityTtlMs()), millis(w.terms.GetRetentionMs()))
	s.work, s.phase = w, phaseRunning
	s.begun.fire()
	return &supervisev1.BeginResponse{}, nil
}

// readWork checks what was handed over.
func readWork(req *supervisev1.BeginRequest) (*handover, error) {
	sum := sha256.Sum256(req.GetWork())
	if hex.EncodeToString(sum[:]) != hexDigest(req.GetSpecDigest()) {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the work does not have the digest %s that was claimed", req.GetSpecDigest())
	}
	work := &runnerv1.Work{}
	if err := proto.Unmarshal(req.GetWork(), work); err != nil {
		return nil, protocol.Errorf(protocol.CodeIncompatible, "the work cannot be read: %w; upgrade bivouac-edge", err)
	}
	if work.GetTurn() == nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "a supervisor runs turns; device actions are the daemon's")
	}
	w := &handover{digest: hexDigest(req.GetSpecDigest()), broker: req.GetBrokerAddress(), turn: work.GetTurn(), trace: work.GetTraceParent(), terms: req.GetTerms()}
	if us := work.GetDeadlineUs(); us > 0 {
		w.until = time.UnixMicro(us)
	}
	return w, nil
}

// hexDigest is the bare hexadecimal form.
func hexDigest(d string) string { return strings.TrimPrefix(d, "sha256:") }

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// Records streams what is on the disk after a sequence, then what comes.
func (s service) Records(ctx context.Context, req *supervisev1.RecordsRequest, out *connect.ServerStream[supervisev1.RecordsResponse]) error {
	after := req.GetAfterSeq()
	for first, told := true, false; ; first = false { // the headers go now, not with the first record
		changed := s.records.wait()
		short, reconsidered := s.short.now()
		batch, err := s.records.batch(after)
		if err != nil {
			return err
		}
		if first || len(batch) > 0 || short != told {
			if err := out.Send(&supervisev1.RecordsResponse{Records: batch, Short: short}); err != nil {
				return err
			}
			told = short
		}
		if len(batch) > 0 {
			after = batch[len(batch)-1].Seq
			continue
		}
		select {
		case <-changed:
		case <-reconsidered:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ctx.Done():
			return nil
		}
	}
}

// Acknowledge notes what the server has.
func (s service) Acknowledge(_ context.Context, req *supervisev1.AcknowledgeRequest) (*supervisev1.AcknowledgeResponse, error) {
	return &supervisev1.AcknowledgeResponse{}, s.records.acknowledge(req.GetSeq())
}

// Renew restarts the lease, unless it is over: what was ended cannot go on. What
// was frozen is thawed, under the same fence.
func (s service) Renew(_ context.Context, req *supervisev1.RenewRequest) (*supervisev1.RenewResponse, error) {
	t := req.GetTerms()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.work == nil:
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "attempt %s has no work to renew", s.cfg.Attempt)
	case t.GetFence() != s.work.terms.GetFence():
		return nil, protocol.Errorf(protocol.CodeStaleFence, "attempt %s holds the fence %d, not %d", s.cfg.Attempt, s.work.terms.GetFence(), t.GetFence())
	case s.phase == phaseLost, s.phase == phaseRunning && s.overLocked():
		return nil, errLost
	}
	s.lease.Renew(s.lease.Now(), millis(t.GetAuthorityTtlMs()), millis(t.GetRetentionMs()))
	if t.GetCapability() != "" {
		s.work.terms.Capability, s.work.terms.Slice = t.GetCapability(), t.GetSlice()
		if s.attempt != nil {
			s.attempt.relay.Refresh(t.GetCapability(), sliceOf(t))
		}
	}
	select {
	case s.renewed <- struct{}{}:
	default:
	}
	return &supervisev1.RenewResponse{}, nil
}

// overLocked: the lease lapsed, and the attempt was not held or not renewed in time.
func (s *supervisor) overLocked() bool {
	if s.lease.Authority() > 0 {
		return false
	}
	return s.lease.Retention() <= 0 || s.attempt != nil && !s.attempt.freezes()
}

// Stop ends the attempt and answers when it has no process.
func (s service) Stop(ctx context.Context, req *supervisev1.StopRequest) (*supervisev1.StopResponse, error) {
	s.mu.Lock()
	if s.stopWhy == "" {
		s.stopWhy = req.GetReason()
	}
	idle := s.phase == phaseIdle
	s.mu.Unlock()
	s.stopped.fire()
	if idle {
		s.quiet.fire()
	}
	s.end(protocol.Errorf(protocol.CodeCancelled, "%s", req.GetReason()))
	select {
	case <-s.quiet.c:
		return &supervisev1.StopResponse{}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Answer brings the server's answer of a requested tool.
func (s service) Answer(_ context.Context, req *supervisev1.AnswerRequest) (*supervisev1.AnswerResponse, error) {
	return &supervisev1.AnswerResponse{}, s.requests.answer(req.GetCallId(), req.GetResult(), req.GetPark())
}

// Live streams the model's text while it comes.
func (s service) Live(ctx context.Context, _ *supervisev1.LiveRequest, out *connect.ServerStream[supervisev1.LiveResponse]) error {
	deltas, stop := s.live.listen()
	defer stop()
	if err := out.Send(&supervisev1.LiveResponse{}); err != nil {
		return err
	}
	for {
		select {
		case d := <-deltas:
			if err := out.Send(&supervisev1.LiveResponse{TextDelta: d}); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ctx.Done():
			return nil
		case <-s.quiet.c:
			return nil
		}
	}
}

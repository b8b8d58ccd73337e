package edge

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/link"
	"bivouac/edge/link/linktest"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/runnerv1/runnerv1connect"
)

const (
	testServer    = "10.0.0.1:7401"
	testTenant    = protocol.TenantID("ten_01jdv3k8x0q6v9w2m4t7y5z1ab")
	testTTL       = 15 * time.Second
	testRetention = 2 * time.Minute
	testLife      = 3 * time.Hour // of a runner's certificate
)

// fakeServer is a small real server of the runner contract: one runner, one
// mailbox, leases of fixed terms. What it knows outlives its listener.
type fakeServer struct {
	runnerv1connect.UnimplementedRunnerServiceHandler
	t    *testing.T
	net  *linktest.Net
	root *identitytest.Root
	tls  *tls.Certificate
	stop func() // of the listener

	mu        sync.Mutex
	codes     map[string]*fakeCode // by the hash of the code
	workloads fakeWorkloads
	forgot    bool
	copies    bool          // refuse the next connect as a copy's
	ahead     time.Duration // of this server's clock
	made      *identity.Challenges
	deaf      atomic.Int32 // how many announcements get no answer
	epoch     int64
	connects  []*runnerv1.ConnectRequest
	facts     *runnerv1.Facts
	mail      []*runnerv1.AttachResponse
	acked     int64
	wake      chan struct{}
	work      map[string][]byte // of attempts that may be claimed
	claims    map[string]*fakeClaim
	declined  map[string]string
	// Jobs of the offers that were claimed and declined.
	claimed, declinedJob map[string]string
	reports              map[string][]*runnerv1.Record
	evidence             bool
	renewals             []time.Time
	blobs                map[string][]byte
	log                  []string // order of what came
	certs                int
	refused              map[string]protocol.Code // claims, by attempt
	mute                 bool                     // reports get no answer

	heldClaims chan struct{} // until it is closed answers to claims are under way
	lostLeaves int           // answers to Leave that do not arrive, though it is done
}

type fakeCode struct {
	expired bool
	usedBy  string
}

type fakeClaim struct {
	nonce string
	fence int64
	dead  bool
}

func newFakeServer(t *testing.T) *fakeServer {
	t.Helper()
	f := &fakeServer{
		t: t, net: linktest.New(5 * time.Millisecond), root: identitytest.NewRoot(), wake: make(chan struct{}),
		codes: map[string]*fakeCode{}, work: map[string][]byte{}, claims: map[string]*fakeClaim{},
		declined: map[string]string{}, claimed: map[string]string{}, declinedJob: map[string]string{}, reports: map[string][]*runnerv1.Record{}, blobs: map[string][]byte{},
	}
	f.tls = f.root.Certify(identitytest.NewKey(), identity.RoleServer, "rep_1", "", time.Now().Add(-time.Hour), time.Now().Add(1000*time.Hour))
	f.listen()
	f.made = identity.NewChallenges(time.Minute)
	t.Cleanup(func() { f.stop(); f.net.Close() })
	return f
}

// live gives the server a certificate of its own time.
func (f *fakeServer) live(ahead time.Duration) {
	now := time.Now().Add(ahead)
	f.ahead, f.tls = ahead, f.root.Certify(identitytest.NewKey(), identity.RoleServer, "rep_1", "", now.Add(-time.Hour), now.Add(23*time.Hour))
}

func (f *fakeServer) RecoverChallenge(ctx context.Context, _ *runnerv1.RecoverChallengeRequest) (*runnerv1.RecoverChallengeResponse, error) {
	p, err := link.PeerFrom(ctx)
	if err != nil || p.Role != identity.RoleNone {
		return nil, refuse(protocol.CodeFailedPrecondition, "recovery needs a self-signed certificate")
	}
	return &runnerv1.RecoverChallengeResponse{Challenge: f.made.Make(p.Thumbprint, time.Now())}, nil
}

func (f *fakeServer) Recover(ctx context.Context, r *runnerv1.RecoverRequest) (*runnerv1.RecoverResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := link.PeerFrom(ctx)
	if err == nil {
		err = f.made.Check(p.PublicKey, r.GetChallenge(), r.GetSignature(), f.root.Certificate, time.Now())
	}
	if err != nil {
		return nil, protocol.ToConnect(err)
	}
	if f.forgot {
		return nil, refuse(protocol.CodePermissionDenied, "the runner desk was revoked")
	}
	f.log = append(f.log, "recover")
	return &runnerv1.RecoverResponse{CertificateChain: f.certify(f.publicKey(ctx)), ServerTimeUs: time.Now().Add(f.ahead).UnixMicro()}, nil
}

func (f *fakeServer) listen() {
	f.t.Helper()
	packets, listener, err := f.net.Listen(testServer)
	if err != nil {
		f.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(runnerv1connect.NewRunnerServiceHandler(f))
	s, err := link.NewServer(link.ServerConfig{
		Handler: mux, Root: f.root.Certificate, Grace: time.Second,
		Certificate: func() (*tls.Certificate, error) { return f.tls, nil },
	})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return s.Serve(ctx, packets, listener) })
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			f.t.Errorf("serve: %v", err)
		}
	})
}

func refuse(code protocol.Code, format string, args ...any) error {
	return protocol.ToConnect(protocol.Errorf(code, format, args...))
}

func (f *fakeServer) terms(fence int64) *runnerv1.LeaseTerms {
	return &runnerv1.LeaseTerms{Fence: fence, AuthorityTtlMs: testTTL.Milliseconds(), RetentionMs: testRetention.Milliseconds(), Capability: "cap"}
}

func (f *fakeServer) certify(key any) []byte {
	public := key.(ed25519.PublicKey)
	spki, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		f.t.Error(err)
	}
	f.certs++
	return identitytest.PEM(f.root.CertifyPublic(public, identity.RoleRunner, identity.RunnerID(spki).String(), testTenant, time.Now().Add(-time.Minute), time.Now().Add(max(testLife-time.Minute, 2*f.ahead))))
}

func (f *fakeServer) publicKey(ctx context.Context) ed25519.PublicKey {
	p, err := link.PeerFrom(ctx)
	if err != nil {
		f.t.Error(err)
	}
	key, err := x509.ParsePKIXPublicKey(p.PublicKey)
	if err != nil {
		f.t.Error(err)
	}
	return key.(ed25519.PublicKey)
}

func (f *fakeServer) Enroll(ctx context.Context, r *runnerv1.EnrollRequest) (*runnerv1.EnrollResponse, error) {
	p, err := link.PeerFrom(ctx)
	if err != nil || p.Role != identity.RoleNone {
		return nil, refuse(protocol.CodeUnauthenticated, "enrolment needs a self-signed certificate")
	}
	if r.GetWorkloadIdentity() != "" {
		return f.enrolWorkload(ctx, p, r)
	}
	code, err := identity.ParseCode(identity.CodeJoin, r.GetCode())
	if err != nil {
		return nil, protocol.ToConnect(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.codes[string(code.Hash())]
	switch {
	case c == nil:
		return nil, refuse(protocol.CodeNotFound, "there is no such code: ask for a new one with `bivouac edge invite`")
	case c.expired:
		return nil, refuse(protocol.CodeFailedPrecondition, "the code has expired: ask for a new one with `bivouac edge invite`")
	case c.usedBy != "" && c.usedBy != p.Thumbprint:
		return nil, refuse(protocol.CodeAlreadyExists, "the code was used by another machine: ask for a new one with `bivouac edge invite`")
	}
	c.usedBy = p.Thumbprint
	return f.enrolled(ctx, p), nil
}

func (f *fakeServer) enrolled(ctx context.Context, p identity.Peer) *runnerv1.EnrollResponse {
	return &runnerv1.EnrollResponse{
		RunnerId: identity.RunnerID(p.PublicKey).String(), TenantId: testTenant.String(), OwnerPrincipalId: "prn_01jdv3k8x0q6v9w2m4t7y5z1ab",
		CertificateChain: f.certify(f.publicKey(ctx)), RootCertificate: identitytest.PEM(f.root.Certificate), BrokerAddress: "10.0.0.9:7402",
	}
}

// fakeWorkloads are the identities that the server takes, and what it says first.
type fakeWorkloads struct {
	token string
	seen  []string // tokens, as they came
	first []error
}

func (f *fakeServer) enrolWorkload(ctx context.Context, p identity.Peer, r *runnerv1.EnrollRequest) (*runnerv1.EnrollResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &f.workloads
	w.seen = append(w.seen, r.GetWorkloadIdentity())
	if len(w.first) > 0 {
		err := w.first[0]
		w.first = w.first[1:]
		return nil, err
	}
	if r.GetWorkloadIdentity() != w.token {
		return nil, refuse(protocol.CodeUnauthenticated, "the workload identity is refused")
	}
	return f.enrolled(ctx, p), nil
}

// welcome refuses strangers, and everybody once the server has forgotten.
func (f *fakeServer) welcome(ctx context.Context) error {
	p, err := link.PeerFrom(ctx)
	if err != nil || p.Role != identity.RoleRunner || f.forgot {
		return refuse(protocol.CodePermissionDenied, "this server does not know the runner")
	}
	return nil
}

func (f *fakeServer) RenewCertificate(ctx context.Context, _ *runnerv1.RenewCertificateRequest) (*runnerv1.RenewCertificateResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.welcome(ctx); err != nil {
		return nil, err
	}
	return &runnerv1.RenewCertificateResponse{CertificateChain: f.certify(f.publicKey(ctx))}, nil
}

func (f *fakeServer) Connect(ctx context.Context, r *runnerv1.ConnectRequest) (*runnerv1.ConnectResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.welcome(ctx); err != nil {
		return nil, err
	}
	if f.copies {
		return nil, refuse(protocol.CodeAlreadyExists, "the runner connected from another machine (old-laptop): run bivouac-edge leave --force here")
	}
	f.epoch++
	f.facts, f.connects = r.GetFacts(), append(f.connects, r)
	res := &runnerv1.ConnectResponse{Epoch: f.epoch, MailboxCursor: f.acked + 1, BrokerAddress: "10.0.0.9:7402", ServerTimeUs: time.Now().Add(f.ahead).UnixMicro()}
	res.Leases = f.verdicts(r.GetHeld())
	f.bumpLocked()
	return res, nil
}

func (f *fakeServer) verdicts(held []*runnerv1.HeldLease) (out []*runnerv1.LeaseVerdict) {
	for _, h := range held {
		if c := f.claims[h.GetAttemptId()]; c != nil && !c.dead && c.fence == h.GetFence() {
			out = append(out, &runnerv1.LeaseVerdict{AttemptId: h.GetAttemptId(), Alive: true, Terms: f.terms(c.fence)})
		}
	}
	return out
}

func (f *fakeServer) bumpLocked() {
	close(f.wake)
	f.wake = make(chan struct{})
}

func (f *fakeServer) Attach(ctx context.Context, r *runnerv1.AttachRequest, stream *connect.ServerStream[runnerv1.AttachResponse]) error {
	cursor := r.GetCursor()
	beat := time.NewTicker(5 * time.Second)
	defer beat.Stop()
	for due := true; ; {
		f.mu.Lock()
		mail, wake, stale := slices.Clone(f.mail), f.wake, f.epoch != r.GetEpoch()
		err := f.welcome(ctx)
		f.mu.Unlock()
		if err != nil {
			return err
		}
		if stale {
			return refuse(protocol.CodeStaleFence, "a later connection took over")
		}
		for _, m := range mail {
			if m.GetSeq() > cursor {
				if err := stream.Send(m); err != nil {
					return err
				}
				cursor = m.GetSeq()
			}
		}
		if due {
			if err := stream.Send(&runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Heartbeat{Heartbeat: &runnerv1.Heartbeat{}}}); err != nil {
				return err
			}
		}
		due = false
		select {
		case <-wake:
		case <-beat.C:
			due = true
		case <-ctx.Done():
			return ctx.Err()
		case <-link.Draining(ctx):
			return refuse(protocol.CodeUnavailable, "the server stops")
		}
	}
}

func (f *fakeServer) Acknowledge(_ context.Context, r *runnerv1.AcknowledgeRequest) (*runnerv1.AcknowledgeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acked = max(f.acked, r.GetSeq())
	f.mail = slices.DeleteFunc(f.mail, func(m *runnerv1.AttachResponse) bool { return m.GetSeq() <= f.acked })
	return &runnerv1.AcknowledgeResponse{}, nil
}

func (f *fakeServer) Claim(_ context.Context, r *runnerv1.ClaimRequest) (*runnerv1.ClaimResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, "claim")
	work, ok := f.work[r.GetAttemptId()]
	c := f.claims[r.GetAttemptId()]
	switch {
	case f.refused[r.GetAttemptId()] != "":
		return nil, refuse(f.refused[r.GetAttemptId()], "the attempt is not to be had")
	case !ok:
		return nil, refuse(protocol.CodeFailedPrecondition, "the attempt has ended")
	case c != nil && c.nonce != r.GetBootNonce():
		return nil, refuse(protocol.CodeConflict, "the attempt was claimed by another supervisor")
	case c == nil:
		c = &fakeClaim{nonce: r.GetBootNonce(), fence: 1<<32 | int64(len(f.claims)+1)}
		f.claims[r.GetAttemptId()] = c
		f.claimed[r.GetAttemptId()] = r.GetAllocation()
	}
	if held := f.heldClaims; held != nil {
		f.mu.Unlock()
		<-held
		f.mu.Lock()
	}
	return &runnerv1.ClaimResponse{Terms: f.terms(c.fence), Work: work, SpecDigest: canonical.Digest(work)}, nil
}

func (f *fakeServer) Decline(_ context.Context, r *runnerv1.DeclineRequest) (*runnerv1.DeclineResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.declined[r.GetAttemptId()], f.declinedJob[r.GetAttemptId()] = r.GetReason(), r.GetAllocation()
	return &runnerv1.DeclineResponse{}, nil
}

func (f *fakeServer) Renew(ctx context.Context, r *runnerv1.RenewRequest) (*runnerv1.RenewResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.welcome(ctx); err != nil {
		return nil, err
	}
	if r.GetEpoch() != f.epoch {
		return nil, refuse(protocol.CodeStaleFence, "a later connection took over")
	}
	f.renewals = append(f.renewals, time.Now())
	return &runnerv1.RenewResponse{Leases: f.verdicts(r.GetLeases())}, nil
}

func (f *fakeServer) Report(_ context.Context, r *runnerv1.ReportRequest) (*runnerv1.ReportResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, "report")
	if f.mute {
		return nil, refuse(protocol.CodeUnavailable, "this server takes no reports")
	}
	if r.GetEpoch() != f.epoch {
		return nil, refuse(protocol.CodeStaleFence, "a later connection took over")
	}
	have := f.reports[r.GetAttemptId()]
	for _, rec := range r.GetRecords() {
		if rec.GetSeq() == int64(len(have))+1 {
			have = append(have, rec)
		}
	}
	f.reports[r.GetAttemptId()] = have
	return &runnerv1.ReportResponse{AcceptedSeq: int64(len(have)), EvidenceOnly: f.evidence}, nil
}

func (f *fakeServer) Live(context.Context, *runnerv1.LiveRequest) (*runnerv1.LiveResponse, error) {
	return &runnerv1.LiveResponse{}, nil
}

func (f *fakeServer) PutBlob(_ context.Context, stream *connect.ClientStream[runnerv1.PutBlobRequest]) (*runnerv1.PutBlobResponse, error) {
	var digest string
	var body []byte
	for stream.Receive() {
		if d := stream.Msg().GetDigest(); d != "" {
			digest = d
		}
		body = append(body, stream.Msg().GetChunk()...)
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	if "sha256:"+hex.EncodeToString(sum[:]) != digest {
		return nil, refuse(protocol.CodeInvalidArgument, "the blob does not have the digest %s", digest)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, "put "+digest)
	f.blobs[digest] = body
	return &runnerv1.PutBlobResponse{}, nil
}

func (f *fakeServer) GetBlob(_ context.Context, r *runnerv1.GetBlobRequest, stream *connect.ServerStream[runnerv1.GetBlobResponse]) error {
	f.mu.Lock()
	body, ok := f.blobs[r.GetDigest()]
	f.mu.Unlock()
	if !ok {
		return refuse(protocol.CodeNotFound, "there is no blob %s", r.GetDigest())
	}
	for chunk := range slices.Chunk(body, 1000) {
		if err := stream.Send(&runnerv1.GetBlobResponse{Chunk: chunk}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeServer) Announce(ctx context.Context, r *runnerv1.AnnounceRequest) (*runnerv1.AnnounceResponse, error) {
	if f.deaf.Add(-1) >= 0 {
		<-ctx.Done() // the call came, and nothing goes back
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.facts = r.GetFacts()
	f.log = append(f.log, fmt.Sprintf("announce paused=%v", r.GetFacts().GetPaused()))
	return &runnerv1.AnnounceResponse{}, nil
}

func (f *fakeServer) Leave(ctx context.Context, _ *runnerv1.LeaveRequest) (*runnerv1.LeaveResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lostLeaves > 0 {
		f.lostLeaves--
		f.forgot = true
		return nil, refuse(protocol.CodeUnavailable, "the answer is lost")
	}
	if err := f.welcome(ctx); err != nil {
		return nil, err
	}
	f.forgot = true
	f.log = append(f.log, "leave")
	f.bumpLocked()
	return &runnerv1.LeaveResponse{}, nil
}

// with runs fn under the lock and wakes the attached runner.
func (f *fakeServer) with(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
	f.bumpLocked()
}

// post puts one delivery into the mailbox.
func (f *fakeServer) post(m *runnerv1.AttachResponse) {
	f.with(func() {
		m.Seq = f.acked + 1
		if n := len(f.mail); n > 0 {
			m.Seq = f.mail[n-1].GetSeq() + 1
		}
		f.mail = append(f.mail, m)
	})
}

// offer makes an attempt claimable and invites the runner.
func (f *fakeServer) offer(id protocol.AttemptID, kind string, w *runnerv1.Work) {
	raw, err := proto.Marshal(w)
	if err != nil {
		f.t.Fatal(err)
	}
	f.with(func() { f.work[id.String()] = raw })
	f.post(&runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Offer{Offer: &runnerv1.Offer{AttemptId: id.String(), SubjectKind: kind, Egress: len(w.GetTurn().GetEgress()) > 0}}})
}

func (f *fakeServer) result(id protocol.AttemptID) *runnerv1.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.reports[id.String()] {
		if r.GetResult() != nil {
			return r.GetResult()
		}
	}
	return nil
}

// get reads a field under the lock.
func get[T any](f *fakeServer, read func() T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return read()
}

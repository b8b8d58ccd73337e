package edge

import (
	"context"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"bivouac/edge/link/linktest"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/state"
	"bivouac/edge/supervise/protocol/supervisev1"
	"bivouac/edge/supervise/protocol/supervisev1/supervisev1connect"
)

// twin is a supervisor in this process: a real server of the contract, whose
// journal a test writes.
type twin struct {
	supervisev1connect.UnimplementedSuperviseServiceHandler
	dir    state.Attempt
	nonce  string
	server *http.Server
	client *http.Client

	mu       sync.Mutex
	begun    *supervisev1.BeginRequest
	begins   int
	renewed  []*runnerv1.LeaseTerms
	records  []*runnerv1.Record
	acked    int64
	stopped  string
	stopAt   time.Time
	answers  []string
	changed  chan struct{}
	obedient bool // journals a result when it is stopped
}

// twins are the supervisors of one machine; they outlive its daemons.
type twins struct {
	t  *testing.T
	mu sync.Mutex
	by map[protocol.AttemptID]*twin
}

func newTwins(t *testing.T) *twins {
	w := &twins{t: t, by: map[protocol.AttemptID]*twin{}}
	t.Cleanup(func() {
		for _, one := range w.all() {
			one.end()
		}
	})
	return w
}

func (w *twins) all() (out []*twin) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.by {
		out = append(out, one)
	}
	return out
}

func (w *twins) get(id protocol.AttemptID) *twin {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[id]
}

func (w *twins) start(_ context.Context, a state.Attempt) (connect.HTTPClient, error) {
	nonce, err := a.BootNonce()
	if err != nil {
		return nil, err
	}
	one := &twin{dir: a, nonce: nonce, changed: make(chan struct{}), obedient: true}
	if m, ok, err := a.Mark(); err == nil && ok && !m.Alive() { // it has the records alone
		one.begun = new(supervisev1.BeginRequest)
		one.finish(&runnerv1.Result{Status: protocol.ResultFailed, Code: protocol.ResultInterrupted})
	}
	listener := linktest.NewListener()
	mux := http.NewServeMux()
	mux.Handle(supervisev1connect.NewSuperviseServiceHandler(one))
	one.server = &http.Server{Handler: mux}
	go one.server.Serve(listener)
	one.client = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.Dial(ctx) },
	}}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by[a.ID] = one
	return one.client, nil
}

func (w *twins) kill(a state.Attempt) {
	if one := w.get(a.ID); one != nil {
		one.end()
	}
}

func (w *twin) end() {
	w.server.Close()
	w.client.CloseIdleConnections()
}

func (w *twin) Hello(context.Context, *supervisev1.HelloRequest) (*supervisev1.HelloResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &supervisev1.HelloResponse{AttemptId: w.dir.ID.String(), BootNonce: w.nonce, Begun: w.begun != nil,
		JournalSeq: int64(len(w.records)), AckedSeq: w.acked}, nil
}

func (w *twin) Begin(_ context.Context, r *supervisev1.BeginRequest) (*supervisev1.BeginResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begins++
	w.begun = proto.CloneOf(r)
	return &supervisev1.BeginResponse{}, nil
}

// journal appends a record.
func (w *twin) journal(r *runnerv1.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Seq = int64(len(w.records)) + 1
	w.records = append(w.records, r)
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *twin) finish(r *runnerv1.Result) {
	w.journal(&runnerv1.Record{Kind: &runnerv1.Record_Result{Result: r}})
}

func (w *twin) Records(ctx context.Context, r *supervisev1.RecordsRequest, stream *connect.ServerStream[supervisev1.RecordsResponse]) error {
	after := r.GetAfterSeq()
	for {
		w.mu.Lock()
		fresh, changed := slices.Clone(w.records[min(after, int64(len(w.records))):]), w.changed
		w.mu.Unlock()
		if len(fresh) > 0 {
			if err := stream.Send(&supervisev1.RecordsResponse{Records: fresh}); err != nil {
				return err
			}
			after += int64(len(fresh))
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *twin) Acknowledge(_ context.Context, r *supervisev1.AcknowledgeRequest) (*supervisev1.AcknowledgeResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked = r.GetSeq()
	if n := len(w.records); n > 0 && w.acked == int64(n) && w.records[n-1].GetResult() != nil {
		go w.end() // a supervisor ends when its result is at the server
	}
	return &supervisev1.AcknowledgeResponse{}, nil
}

func (w *twin) Renew(_ context.Context, r *supervisev1.RenewRequest) (*supervisev1.RenewResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.renewed = append(w.renewed, r.GetTerms())
	return &supervisev1.RenewResponse{}, nil
}

func (w *twin) Stop(_ context.Context, r *supervisev1.StopRequest) (*supervisev1.StopResponse, error) {
	w.mu.Lock()
	first := w.stopped == ""
	if first {
		w.stopped, w.stopAt = r.GetReason(), time.Now()
	}
	obedient := w.obedient
	w.mu.Unlock()
	if first && obedient {
		w.finish(&runnerv1.Result{Status: "cancelled", Message: r.GetReason()})
	}
	return &supervisev1.StopResponse{}, nil
}

func (w *twin) Answer(_ context.Context, r *supervisev1.AnswerRequest) (*supervisev1.AnswerResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers = append(w.answers, r.GetCallId()+"="+string(r.GetResult()))
	return &supervisev1.AnswerResponse{}, nil
}

func (w *twin) Live(ctx context.Context, _ *supervisev1.LiveRequest, _ *connect.ServerStream[supervisev1.LiveResponse]) error {
	<-ctx.Done()
	return ctx.Err()
}

// patch puts a blob where a supervisor leaves its patches.
func (w *twin) patch(t *testing.T, text string) (digest string) {
	t.Helper()
	digest = canonical.Digest([]byte(text))
	if err := os.WriteFile(w.dir.Blob(digest), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return digest
}

func (w *twin) see(read func() bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return read()
}

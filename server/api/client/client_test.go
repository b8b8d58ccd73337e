package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/apiv1/apiv1connect"
)

// server answers some services as a test wants.
type server struct {
	apiv1connect.UnimplementedPrincipalServiceHandler
	apiv1connect.UnimplementedTurnServiceHandler
	apiv1connect.UnimplementedEventServiceHandler
	apiv1connect.UnimplementedArtifactServiceHandler

	mu    sync.Mutex // guards below
	calls int
	auth  []string

	whoami func(call int) error
	add    func(call int) error
	watch  func(call int, after int64, send func(*apiv1.WatchEventsResponse) error) error
	blobs  map[string][]byte
}

func (s *server) next(ctx context.Context) int {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.auth = append(s.auth, info.RequestHeader().Get("Authorization"))
	return s.calls
}

func (s *server) WhoAmI(ctx context.Context, _ *apiv1.WhoAmIRequest) (*apiv1.WhoAmIResponse, error) {
	if err := s.whoami(s.next(ctx)); err != nil {
		return nil, err
	}
	return &apiv1.WhoAmIResponse{ServerVersion: "test"}, nil
}

func (s *server) AddPrincipal(ctx context.Context, _ *apiv1.AddPrincipalRequest) (*apiv1.AddPrincipalResponse, error) {
	return &apiv1.AddPrincipalResponse{}, s.add(s.next(ctx))
}

func (s *server) WatchEvents(ctx context.Context, r *apiv1.WatchEventsRequest, stream *connect.ServerStream[apiv1.WatchEventsResponse]) error {
	return s.watch(s.next(ctx), r.GetAfterSeq(), stream.Send)
}

func (s *server) PutArtifact(_ context.Context, stream *connect.ClientStream[apiv1.PutArtifactRequest]) (*apiv1.PutArtifactResponse, error) {
	var name string
	var content []byte
	for stream.Receive() {
		if d := stream.Msg().GetDigest(); d != "" {
			name = d
		}
		content = append(content, stream.Msg().GetChunk()...)
	}
	_, existed := s.blobs[name]
	s.blobs[name] = content
	return &apiv1.PutArtifactResponse{Digest: name, Existed: existed}, stream.Err()
}

func (s *server) GetArtifact(_ context.Context, r *apiv1.GetArtifactRequest, stream *connect.ServerStream[apiv1.GetArtifactResponse]) error {
	return stream.Send(&apiv1.GetArtifactResponse{Chunk: s.blobs[r.GetDigest()]})
}

func start(t *testing.T, s *server) *Client {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(apiv1connect.NewPrincipalServiceHandler(s))
	mux.Handle(apiv1connect.NewEventServiceHandler(s))
	mux.Handle(apiv1connect.NewArtifactServiceHandler(s))
	ts := httptest.NewServer(mux)
	t.Cleanup(ts.Close)
	c, err := New(Config{URL: ts.URL, Token: "bvt_token"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func refuse(code protocol.Code) error {
	return protocol.ToConnect(&protocol.Error{Code: code, Message: "refused: " + string(code)})
}

func TestTokenAndCodes(t *testing.T) {
	s := &server{whoami: func(int) error { return refuse(protocol.CodePolicyDenied) }}
	c := start(t, s)
	_, err := c.Principals.WhoAmI(t.Context(), &apiv1.WhoAmIRequest{})
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code != protocol.CodePolicyDenied || e.Message != "refused: policy_denied" {
		t.Errorf("got %#v", err)
	}
	if s.calls != 1 || s.auth[0] != "Bearer bvt_token" {
		t.Errorf("%d calls, %q", s.calls, s.auth)
	}
}

func TestRetriesOnlyWhatMayBeRepeated(t *testing.T) {
	twice := func(code protocol.Code) func(int) error {
		return func(call int) error {
			if call <= 2 {
				return refuse(code)
			}
			return nil
		}
	}
	s := &server{whoami: twice(protocol.CodeUnavailable)}
	if _, err := start(t, s).Principals.WhoAmI(t.Context(), &apiv1.WhoAmIRequest{}); err != nil || s.calls != 3 {
		t.Errorf("a read: %v after %d calls", err, s.calls)
	}
	s = &server{add: twice(protocol.CodeUnavailable)}
	if _, err := start(t, s).Principals.AddPrincipal(t.Context(), &apiv1.AddPrincipalRequest{}); protocol.CodeOf(err) != protocol.CodeUnavailable || s.calls != 1 {
		t.Errorf("a token is in one answer only: %v after %d calls", err, s.calls)
	}
	s = &server{whoami: twice(protocol.CodeConflict)}
	if _, err := start(t, s).Principals.WhoAmI(t.Context(), &apiv1.WhoAmIRequest{}); protocol.CodeOf(err) != protocol.CodeConflict || s.calls != 1 {
		t.Errorf("a final answer: %v after %d calls", err, s.calls)
	}
	s = &server{whoami: func(int) error {
		return protocol.ToConnect(&protocol.Error{Code: protocol.CodeQueueFull, Message: "full", RetryAfter: time.Minute})
	}}
	_, err := start(t, s).Principals.WhoAmI(t.Context(), &apiv1.WhoAmIRequest{})
	var e *protocol.Error
	if !errors.As(err, &e) || e.RetryAfter != time.Minute || s.calls != 1 {
		t.Errorf("a long wait is the person's: %v after %d calls", err, s.calls)
	}
}

// Every unary method says whether it may be repeated, and every entry is a method.
func TestIdempotencyTableIsTotal(t *testing.T) {
	seen := map[string]bool{}
	services := apiv1.File_bivouac_v1_api_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			if m.IsStreamingClient() || m.IsStreamingServer() {
				continue
			}
			name := procedure(m)
			seen[name] = true
			if _, ok := idempotent[name]; !ok {
				t.Errorf("%s has no row", name)
			}
		}
	}
	for name := range idempotent {
		if !seen[name] {
			t.Errorf("%s is no unary method", name)
		}
	}
}

func procedure(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

func TestUnreachableServerSaysWhatToDo(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	l.Close()
	c, err := New(Config{URL: url, Retries: -1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Principals.WhoAmI(t.Context(), &apiv1.WhoAmIRequest{})
	if protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "bivouac login") {
		t.Errorf("got %v", err)
	}
}

func TestBadAddresses(t *testing.T) {
	for url, fine := range map[string]bool{
		"http://127.0.0.1:7400": true, "https://server.example": true, "http://localhost:1": true,
		"127.0.0.1:7400": false, "ftp://x": false, "": false, "http://server.example": false, "http://10.1.2.3:7400": false,
	} {
		if _, err := New(Config{URL: url, Token: "bvt_x"}); (err == nil) != fine {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func event(seq int64) *apiv1.WatchEventsResponse {
	return &apiv1.WatchEventsResponse{Kind: &apiv1.WatchEventsResponse_Event{Event: &apiv1.Event{Seq: seq}}}
}

// A stream that breaks resumes after the last event, without a gap or a repeat.
func TestWatchResumes(t *testing.T) {
	var from []int64
	s := &server{watch: func(call int, after int64, send func(*apiv1.WatchEventsResponse) error) error {
		from = append(from, after)
		switch call {
		case 1:
			send(event(1))
			send(event(2))
			return refuse(protocol.CodeUnavailable)
		case 2:
			return refuse(protocol.CodeUnavailable)
		case 3:
			send(event(2)) // a repeat is dropped
			send(event(3))
			return nil
		}
		return errors.New("too many calls")
	}}
	var got []int64
	lost := 0
	c := start(t, s)
	c.lost = func(error) { lost++ }
	err := c.Watch(t.Context(), "ses_1", 0, func(m *apiv1.WatchEventsResponse) error {
		got = append(got, m.GetEvent().GetSeq())
		return nil
	})
	if err != nil || fmt.Sprint(got) != "[1 2 3]" || fmt.Sprint(from) != "[0 2 2]" {
		t.Errorf("%v: events %v from %v", err, got, from)
	}
	if lost != 2 {
		t.Errorf("a lost connection was told %d times", lost)
	}
}

func TestWatchEnds(t *testing.T) {
	stop := errors.New("enough")
	s := &server{watch: func(_ int, after int64, send func(*apiv1.WatchEventsResponse) error) error {
		return send(event(after + 1))
	}}
	if err := start(t, s).Watch(t.Context(), "ses_1", 0, func(*apiv1.WatchEventsResponse) error { return stop }); err != stop {
		t.Errorf("the handler's own error: %v", err)
	}
	s = &server{watch: func(int, int64, func(*apiv1.WatchEventsResponse) error) error { return refuse(protocol.CodeNotFound) }}
	if err := start(t, s).Watch(t.Context(), "ses_1", 0, nil); protocol.CodeOf(err) != protocol.CodeNotFound {
		t.Errorf("a final refusal: %v", err)
	}
	s = &server{watch: func(_ int, after int64, send func(*apiv1.WatchEventsResponse) error) error {
		return send(event(after + 2))
	}}
	if err := start(t, s).Watch(t.Context(), "ses_1", 0, func(*apiv1.WatchEventsResponse) error { return nil }); protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("a gap: %v", err)
	}
}

func TestArtifacts(t *testing.T) {
	s := &server{blobs: map[string][]byte{}}
	c := start(t, s)
	for _, size := range []int{0, 5, chunkBytes, 2*chunkBytes + 3} {
		content := bytes.Repeat([]byte{7}, size)
		digest, existed, err := c.PutArtifact(t.Context(), "workspace", bytes.NewReader(content))
		if err != nil || existed {
			t.Fatal(digest, existed, err)
		}
		var got bytes.Buffer
		if err := c.GetArtifact(t.Context(), digest, &got); err != nil || !bytes.Equal(got.Bytes(), content) {
			t.Errorf("%d bytes: %v", size, err)
		}
		s.blobs[digest] = append(s.blobs[digest], 'x')
		if err := c.GetArtifact(t.Context(), digest, &got); protocol.CodeOf(err) != protocol.CodeDataLoss {
			t.Errorf("other content was taken: %v", err)
		}
	}
}

// A text that is no UTF-8 cannot be written: that is the caller's mistake, no
// broken connection, and it is not tried again. UTF-8 is sent.
func TestUnwritableIsAMistake(t *testing.T) {
	s := &server{add: func(int) error { return nil }}
	c := start(t, s)
	_, err := c.Principals.AddPrincipal(t.Context(), &apiv1.AddPrincipalRequest{Name: "caf\xe9"})
	if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), "valid UTF-8") || s.calls != 0 {
		t.Errorf("%v after %d calls", err, s.calls)
	}
	if _, err := c.Principals.AddPrincipal(t.Context(), &apiv1.AddPrincipalRequest{Name: "café"}); err != nil || s.calls != 1 {
		t.Errorf("%v after %d calls", err, s.calls)
	}
}

func TestTooLargeIsNoReasonToRetry(t *testing.T) {
	s := &server{add: func(int) error { return nil }, whoami: func(int) error { return nil }}
	c := start(t, s)
	_, err := c.Principals.AddPrincipal(t.Context(), &apiv1.AddPrincipalRequest{Name: strings.Repeat("x", maxMessageBytes)})
	if protocol.CodeOf(err) != protocol.CodeInvalidArgument || s.calls != 0 {
		t.Errorf("%v after %d calls", err, s.calls)
	}
}

// What may have been committed is asked again where that is harmless, and told to
// the person where it is not.
func TestUnknownOutcomeIsAskedAgain(t *testing.T) {
	unknown := protocol.Errorf(protocol.CodeOutcomeUnknown, "no reply")
	for procedure, want := range idempotent {
		if _, again := retryIn(procedure, unknown, 0); again != want {
			t.Errorf("%s is called again: %t, want %t", procedure, again, want)
		}
	}
	if _, again := retryIn(apiv1connect.TurnServiceSubmitTurnProcedure, protocol.Errorf(protocol.CodeConflict, "no"), 0); again {
		t.Error("a refusal is called again")
	}
}

// A server that is killed resets its connections: a call that may be repeated is,
// and whoever reads along comes back. One that may not be says what happened.
func TestResetConnectionIsAskedAgain(t *testing.T) {
	s := &server{whoami: func(int) error { return nil }, watch: func(_ int, after int64, send func(*apiv1.WatchEventsResponse) error) error {
		return send(event(after + 1))
	}}
	mux := http.NewServeMux()
	mux.Handle(apiv1connect.NewPrincipalServiceHandler(s))
	mux.Handle(apiv1connect.NewEventServiceHandler(s))
	var resets atomic.Int32
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if resets.Add(-1) < 0 {
			mux.ServeHTTP(w, r)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.(*net.TCPConn).SetLinger(0) // close resets
		conn.Close()
	}))
	defer ts.Close()
	c, err := New(Config{URL: ts.URL, Token: "bvt_token"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	resets.Store(2)
	if _, err := c.Principals.WhoAmI(t.Context(), &apiv1.WhoAmIRequest{}); err != nil {
		t.Errorf("a read: %v", err)
	}
	resets.Store(1)
	_, err = c.Principals.AddPrincipal(t.Context(), &apiv1.AddPrincipalRequest{})
	if protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "broke") {
		t.Errorf("a token is in one answer only: %v", err)
	}
	resets.Store(2)
	seen := 0
	if err := c.Watch(t.Context(), "ses_1", 0, func(*apiv1.WatchEventsResponse) error { seen++; return nil }); err != nil || seen != 1 {
		t.Errorf("reading along: %v after %d events", err, seen)
	}
}

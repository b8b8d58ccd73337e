package supervise

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"bivouac/edge/lease"
	"bivouac/edge/lease/leasetest"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/relay"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/bubblewrap"
	"bivouac/edge/supervise/protocol/supervisev1"
	"bivouac/edge/supervise/protocol/supervisev1/supervisev1connect"
	"bivouac/edge/workspace"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// memory is a listener whose connections are pipes, for virtual time.
type memory struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newMemory() *memory { return &memory{conns: make(chan net.Conn), done: make(chan struct{})} }

func (m *memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.done:
		return nil, net.ErrClosed
	}
}

func (m *memory) Close() error   { m.once.Do(func() { close(m.done) }); return nil }
func (m *memory) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

func (m *memory) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case m.conns <- theirs:
		return ours, nil
	case <-m.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// capability that no sandbox may ever see. INV-12.
const capability = "canary-capability-5f1d"

// broker is a small real one: it streams what answer makes of each request.
type broker struct {
	brokerv1connect.UnimplementedBrokerServiceHandler
	answer func(ctx context.Context, req *runtimev1.ModelRequest, delta func(string) error) (*runtimev1.ModelDone, error)

	// packages answers what relays ask for sandboxed code; nil: nobody does.
	packages http.Handler

	mu    sync.Mutex
	calls []*brokerv1.CallModelRequest
}

func (b *broker) CallModel(ctx context.Context, req *brokerv1.CallModelRequest, out *connect.ServerStream[brokerv1.CallModelResponse]) error {
	b.mu.Lock()
	b.calls = append(b.calls, req)
	b.mu.Unlock()
	send := func(ev *runtimev1.ModelResponse) error { return out.Send(&brokerv1.CallModelResponse{Event: ev}) }
	done, err := b.answer(ctx, req.GetRequest(), func(text string) error {
		return send(&runtimev1.ModelResponse{Kind: &runtimev1.ModelResponse_TextDelta{TextDelta: text}})
	})
	if err != nil {
		return protocol.ToConnect(err)
	}
	return send(&runtimev1.ModelResponse{Kind: &runtimev1.ModelResponse_Done{Done: done}})
}

func (b *broker) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.calls)
}

// dial serves the broker over pipes and returns how a relay reaches it.
func (b *broker) dial(t *testing.T) relay.DialFunc {
	mux := http.NewServeMux()
	mux.Handle(brokerv1connect.NewBrokerServiceHandler(b))
	if b.packages != nil {
		mux.Handle(protocol.EgressPath, b.packages)
	}
	l := newMemory()
	s := &http.Server{Handler: mux, Protocols: plainHTTP2()}
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(l) })
	t.Cleanup(func() { s.Close(); wg.Wait() })
	return func(string) (relay.Broker, func() error, error) {
		c := ClientOver(l.dial)
		return relay.Over(c, "http://broker"), func() error { c.CloseIdleConnections(); return nil }, nil
	}
}

// say is an answer of text, call one of a tool call.
func say(text string) *runtimev1.ModelDone {
	return &runtimev1.ModelDone{StopReason: runtimev1.StopReason_STOP_REASON_END, Usage: &runtimev1.Usage{InputTokens: 1, OutputTokens: 1},
		Message: &runtimev1.Message{Role: runtimev1.Role_ROLE_ASSISTANT, Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_Text{Text: text}}}}}
}

func call(id, alias, arguments string) *runtimev1.ModelDone {
	return &runtimev1.ModelDone{StopReason: runtimev1.StopReason_STOP_REASON_TOOL_CALLS, Usage: &runtimev1.Usage{InputTokens: 1, OutputTokens: 1},
		Message: &runtimev1.Message{Role: runtimev1.Role_ROLE_ASSISTANT, Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_ToolCall{
			ToolCall: &runtimev1.ToolCall{Id: id, Alias: alias, Arguments: arguments}}}}}}
}

// lastResult is the newest tool result of a conversation.
func lastResult(req *runtimev1.ModelRequest) *runtimev1.ToolResult {
	for i := len(req.Messages) - 1; i >= 0; i-- {
		for _, b := range req.Messages[i].Blocks {
			if r := b.GetToolResult(); r != nil {
				return r
			}
		}
	}
	return nil
}

// Tools as the server's policy offers them.
func tools() []*runtimev1.Tool {
	object := func(props, required string) string {
		return `{"additionalProperties":false,"properties":{` + props + `},"required":[` + required + `],"type":"object"}`
	}
	sandboxTool := func(ref, alias, schema string, e runtimev1.Effect) *runtimev1.Tool {
		return &runtimev1.Tool{Ref: ref, Alias: alias, InputSchema: schema, Effect: e, Placement: runtimev1.Placement_PLACEMENT_SANDBOX}
	}
	read, local := runtimev1.Effect_EFFECT_READ, runtimev1.Effect_EFFECT_REVERSIBLE_LOCAL
	return []*runtimev1.Tool{
		sandboxTool("sandbox.read", "read_file", object(`"path":{"type":"string"}`, `"path"`), read),
		sandboxTool("sandbox.write", "write_file", object(`"content":{"type":"string"},"path":{"type":"string"}`, `"content","path"`), local),
		sandboxTool("sandbox.list", "list_files", object(`"path":{"type":"string"}`, `"path"`), read),
		sandboxTool("sandbox.search", "search", object(`"path":{"type":"string"},"pattern":{"type":"string"}`, `"pattern"`), read),
		sandboxTool("sandbox.shell", "shell", object(`"command":{"type":"string"},"timeout_ms":{"type":"integer"}`, `"command"`), local),
		{Ref: "http:forecast", Alias: "forecast", InputSchema: object("", ""), Effect: runtimev1.Effect_EFFECT_READ, Placement: runtimev1.Placement_PLACEMENT_GATEWAY, Destination: "weather"},
	}
}

func spec(adapter string) *runtimev1.Spec {
	return &runtimev1.Spec{
		Adapter: adapter, Model: "main", Instructions: "You fix code.", Tools: tools(), MaxOutputTokens: 1000,
		Limits: &runtimev1.Limits{MaxModelCalls: 20, MaxToolCalls: 20, MaxCorrections: 3, MaxTokens: 1 << 20,
			MaxCostMicroUsd: 1 << 30, MaxWallMs: int64(10 * time.Minute / time.Millisecond), MaxResultBytes: 32 << 10},
		Messages: []*runtimev1.Message{{Role: runtimev1.Role_ROLE_USER, Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_Text{Text: "make the failing test pass"}}}}},
	}
}

func scripted(script string) *runtimev1.Spec {
	s := spec("scripted")
	s.Script = []byte(script)
	return s
}

// rig is one supervisor under test, and the daemon's side of it.
type rig struct {
	t      *testing.T
	cfg    Config
	client supervisev1connect.SuperviseServiceClient
	http   *http.Client
	begin  *supervisev1.BeginRequest
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of Run, once done is closed
	// execTimeout of a command; zero: two minutes.
	execTimeout time.Duration
}

// compiles is how long a command may take that runs a compiler.
const compiles = 20 * time.Minute

func newConfig(t *testing.T, b *broker) Config {
	dir := filepath.Join(t.TempDir(), "attempt")
	must(t, os.MkdirAll(filepath.Join(dir, "blobs"), 0o700))
	cfg := Config{Dir: dir, Attempt: protocol.NewID[protocol.AttemptKind](time.Now(), rand.Reader), Elapsed: leasetest.Monotonic(),
		Log: testLog(t)}
	cfg.Dial = b.dial(t)
	return cfg
}

// start runs a supervisor until the test ends.
func start(t *testing.T, cfg Config) *rig {
	t.Helper()
	r := &rig{t: t, cfg: cfg, done: make(chan struct{})}
	if l, ok := cfg.Listener.(*memory); ok {
		r.http = ClientOver(l.dial)
	} else {
		r.http = Client(cfg.Dir)
	}
	r.client = supervisev1connect.NewSuperviseServiceClient(r.http, "http://supervisor")
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.err = Run(ctx, cfg)
	}()
	t.Cleanup(r.stop)
	for {
		_, err := r.client.Hello(t.Context(), &supervisev1.HelloRequest{})
		if err == nil {
			return r
		}
		select {
		case <-r.done:
			t.Fatalf("the supervisor ended: %v", r.err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (r *rig) stop() {
	r.cancel()
	<-r.done
	r.http.CloseIdleConnections()
}

// handOver begins work on a packed folder ("" for none).
func (r *rig) handOver(s *runtimev1.Spec, folder string, terms *runnerv1.LeaseTerms) {
	r.t.Helper()
	r.handOverWork(r.turn(s, folder), terms)
}

// turn on a packed folder.
func (r *rig) turn(s *runtimev1.Spec, folder string) *runnerv1.TurnWork {
	r.t.Helper()
	turn := &runnerv1.TurnWork{Trust: "untrusted", Limits: &runnerv1.SandboxLimits{
		MemoryBytes: 1 << 30, CpuMillis: 2000, Pids: 256, DiskBytes: 1 << 30, ExecTimeoutMs: cmp.Or(r.execTimeout, 2*time.Minute).Milliseconds(), OutputBytes: 4 << 20}}
	if folder != "" {
		turn.WorkspaceDigest = r.packed(folder)
	}
	s.AttemptId = r.cfg.Attempt.String()
	var err error
	turn.Spec, err = deterministic.Marshal(s)
	must(r.t, err)
	return turn
}

func (r *rig) handOverWork(turn *runnerv1.TurnWork, terms *runnerv1.LeaseTerms) {
	r.t.Helper()
	work, err := deterministic.Marshal(&runnerv1.Work{Kind: &runnerv1.Work_Turn{Turn: turn}, DeadlineUs: time.Now().Add(time.Hour).UnixMicro()})
	must(r.t, err)
	sum := sha256.Sum256(work)
	if terms == nil {
		terms = &runnerv1.LeaseTerms{Fence: 1<<32 + 1, AuthorityTtlMs: 600_000, RetentionMs: 1_200_000, Capability: capability}
	}
	r.begin = &supervisev1.BeginRequest{Work: work, SpecDigest: "sha256:" + hex.EncodeToString(sum[:]), Terms: terms, BrokerAddress: "broker:1"}
	_, err = r.client.Begin(r.t.Context(), r.begin)
	must(r.t, err)
}

func (r *rig) blob(b []byte) string {
	r.t.Helper()
	sum := sha256.Sum256(b)
	d := hex.EncodeToString(sum[:])
	must(r.t, os.WriteFile(filepath.Join(r.cfg.Dir, "blobs", d), b, 0o600))
	return "sha256:" + d
}

// records reads from after until stop says so, or the stream ends.
func (r *rig) records(after int64, stop func(*runnerv1.Record) bool) []*runnerv1.Record {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	stream, err := r.client.Records(ctx, &supervisev1.RecordsRequest{AfterSeq: after})
	must(r.t, err)
	defer stream.Close()
	var all []*runnerv1.Record
	for stream.Receive() {
		for _, rec := range stream.Msg().Records {
			if rec.Seq != after+1 {
				r.t.Fatalf("record %d follows %d", rec.Seq, after)
			}
			after = rec.Seq
			all = append(all, rec)
			if stop(rec) {
				return all
			}
		}
	}
	r.t.Fatalf("the records ended after %d: %v", after, stream.Err())
	return nil
}

func isResult(rec *runnerv1.Record) bool { return rec.GetResult() != nil }

// result waits for the attempt's result.
func (r *rig) result() (*runnerv1.Result, []*runnerv1.Record) {
	r.t.Helper()
	all := r.records(0, isResult)
	return all[len(all)-1].GetResult(), all
}

// acknowledge the last record, and wait for the supervisor's end.
func (r *rig) acknowledge(all []*runnerv1.Record) {
	r.t.Helper()
	_, err := r.client.Acknowledge(r.t.Context(), &supervisev1.AcknowledgeRequest{Seq: all[len(all)-1].Seq})
	must(r.t, err)
	<-r.done
	must(r.t, r.err)
	if _, err := os.Lstat(r.cfg.workDir()); !os.IsNotExist(err) {
		r.t.Errorf("the workspace is left: %v", err) // INV-18
	}
}

func (r *rig) patch(digest string) string {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.cfg.Dir, "blobs", hexDigest(digest)))
	must(r.t, err)
	return string(b)
}

func outcomeOf(t *testing.T, r *runnerv1.Result) *runtimev1.Outcome {
	t.Helper()
	o := &runtimev1.Outcome{}
	must(t, proto.Unmarshal(r.GetOutcome(), o))
	return o
}

// events are the loop's events among records.
func events(t *testing.T, all []*runnerv1.Record) (out []*runtimev1.LoopEvent) {
	t.Helper()
	for _, rec := range all {
		if b := rec.GetLoopEvent(); b != nil {
			ev := &runtimev1.LoopEvent{}
			must(t, proto.Unmarshal(b, ev))
			out = append(out, ev)
		}
	}
	return out
}

func toolResults(t *testing.T, all []*runnerv1.Record) (out []*runtimev1.ToolResult) {
	for _, ev := range events(t, all) {
		if r := ev.GetToolFinished(); r != nil {
			out = append(out, r)
		}
	}
	return out
}

var built struct {
	once sync.Once
	path string
	err  error
}

// workerBinary builds bivouac-worker once, as it is shipped: static.
func workerBinary(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		dir, err := os.MkdirTemp("", "bivouac-worker-")
		if err != nil {
			built.err = err
			return
		}
		built.path = filepath.Join(dir, "bivouac-worker")
		cmd := exec.Command("go", "build", "-o", built.path, "bivouac/cmd/bivouac-worker")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = protocol.Errorf(protocol.CodeInternal, "%w: %s", err, out)
		}
	})
	must(t, built.err)
	return built.path
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.path != "" {
		os.RemoveAll(filepath.Dir(built.path))
	}
	os.Exit(code)
}

// real is a configuration with the bubblewrap backend of this machine.
func real(t *testing.T, b *broker) Config {
	t.Helper()
	backend := bubblewrap.New(bubblewrap.Config{})
	report := backend.Probe(t.Context())
	if report.Boundary == "" {
		t.Fatalf("no usable sandbox on this machine: %s", report.Problem)
	}
	cfg := newConfig(t, b)
	cfg.Backend, cfg.WorkerPath = &seeing{backend, report}, workerBinary(t)
	cfg.Elapsed = lease.Boottime
	if report.Limits != protocol.LimitsCgroup {
		t.Logf("limits here are %q: the test's work is trusted", report.Limits)
		seen(cfg).Limits = protocol.LimitsCgroup
	}
	return cfg
}

// seeing is a backend whose probe has seen what a test says.
type seeing struct {
	sandbox.Backend
	report sandbox.Report
}

func (s *seeing) Probe(context.Context) sandbox.Report { return s.report }

// seen is what the probe of a configuration sees.
func seen(cfg Config) *sandbox.Report { return &cfg.Backend.(*seeing).report }

// repository makes a git folder with one commit.
func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "first"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	return dir
}

// packed brings a folder as a blob.
func (r *rig) packed(folder string) string {
	r.t.Helper()
	var b bytes.Buffer
	_, err := workspace.Pack(r.t.Context(), folder, &b)
	must(r.t, err)
	return r.blob(b.Bytes())
}

func unmarshal(b []byte, m proto.Message) bool { return proto.Unmarshal(b, m) == nil }

// answers gives one answer after the other.
func answers(each ...func(*runtimev1.ModelRequest) *runtimev1.ModelDone) func(context.Context, *runtimev1.ModelRequest, func(string) error) (*runtimev1.ModelDone, error) {
	next := 0
	return func(_ context.Context, req *runtimev1.ModelRequest, _ func(string) error) (*runtimev1.ModelDone, error) {
		if next == len(each) {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "nobody expected another model call")
		}
		next++
		return each[next-1](req), nil
	}
}

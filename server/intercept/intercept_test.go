package intercept

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"bivouac/edge/protocol"
)

const method = "/test.Service/Call"

// serve answers method with fn, and returns a call to it and the log.
func serve(t *testing.T, timeout time.Duration, fn func(context.Context) (*wrapperspb.StringValue, error)) (call func() error, log *bytes.Buffer, header func() http.Header) {
	t.Helper()
	log = &bytes.Buffer{}
	mux := http.NewServeMux()
	mux.Handle(method, connect.NewUnaryHandlerSimple(method,
		func(ctx context.Context, _ *wrapperspb.StringValue) (*wrapperspb.StringValue, error) { return fn(ctx) },
		Options(timeout)...))
	h := Handler(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), mux)
	var last http.Header
	call = func() error {
		r := httptest.NewRequest(http.MethodPost, method, strings.NewReader(`"secret prompt"`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer bvt_secret")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		last = w.Header()
		if w.Code == http.StatusOK {
			return nil
		}
		return fmt.Errorf("%d %s: %s", w.Code, last.Get("Bivouac-Code"), w.Body.String())
	}
	return call, log, func() http.Header { return last }
}

func ok(context.Context) (*wrapperspb.StringValue, error) {
	return wrapperspb.String("answer text"), nil
}

func TestOneLineWithoutBodies(t *testing.T) {
	call, log, header := serve(t, time.Second, func(ctx context.Context) (*wrapperspb.StringValue, error) {
		Annotate(ctx, slog.String("principal", "prn_x"))
		return ok(ctx)
	})
	if err := call(); err != nil {
		t.Fatal(err)
	}
	line := log.String()
	if strings.Count(line, "\n") != 1 {
		t.Fatalf("log has not one line: %q", line)
	}
	id := header().Get(HeaderRequestID)
	for _, want := range []string{"method=" + method, "code=ok", "took=", "principal=prn_x", "request=" + id} {
		if !strings.Contains(line, want) {
			t.Errorf("log lacks %s: %s", want, line)
		}
	}
	for _, never := range []string{"secret", "answer text"} {
		if strings.Contains(line, never) {
			t.Errorf("log has a body or a header: %s", line)
		}
	}
}

// What went well is for debugging, unless it changed what somebody may do; what
// was refused is shown.
func TestLevels(t *testing.T) {
	for name, tc := range map[string]struct {
		fn    func(context.Context) error
		level string
	}{
		"well":      {func(context.Context) error { return nil }, "DEBUG"},
		"a mistake": {func(context.Context) error { return protocol.Errorf(protocol.CodeInvalidArgument, "no") }, "DEBUG"},
		"kept":      {func(ctx context.Context) error { Keep(ctx); return nil }, "INFO"},
		"refused":   {func(context.Context) error { return protocol.Errorf(protocol.CodePermissionDenied, "no") }, "INFO"},
		"a fault":   {func(context.Context) error { return errors.New("table turns is gone") }, "ERROR"},
	} {
		call, log, _ := serve(t, time.Second, func(ctx context.Context) (*wrapperspb.StringValue, error) {
			return wrapperspb.String("x"), tc.fn(ctx)
		})
		_ = call() // its end is in the log
		if !strings.Contains(log.String(), "level="+tc.level+" ") {
			t.Errorf("%s: %s", name, log)
		}
	}
}

func TestCodedErrorGoesOut(t *testing.T) {
	call, log, header := serve(t, time.Second, func(context.Context) (*wrapperspb.StringValue, error) {
		return nil, fmt.Errorf("admit: %w", &protocol.Error{Code: protocol.CodeQueueFull, Message: "the queue is full", RetryAfter: 3 * time.Second})
	})
	err := call()
	if err == nil || !strings.Contains(err.Error(), "429 queue_full") || !strings.Contains(err.Error(), "the queue is full") {
		t.Errorf("got %v", err)
	}
	if got := header().Get("Retry-After"); got != "3" {
		t.Errorf("Retry-After %q", got)
	}
	if !strings.Contains(log.String(), "code=queue_full") || strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("a refusal is no fault: %s", log)
	}
}

func TestFaultStaysInside(t *testing.T) {
	faults := map[string]func(context.Context) (*wrapperspb.StringValue, error){
		"uncoded": func(context.Context) (*wrapperspb.StringValue, error) { return nil, errors.New("table turns is gone") },
		"internal": func(context.Context) (*wrapperspb.StringValue, error) {
			return nil, protocol.Errorf(protocol.CodeInternal, "table turns is gone")
		},
		"panic": func(context.Context) (*wrapperspb.StringValue, error) { panic("table turns is gone") },
	}
	for name, fn := range faults {
		t.Run(name, func(t *testing.T) {
			call, log, header := serve(t, time.Second, fn)
			err := call()
			id := header().Get(HeaderRequestID)
			switch {
			case err == nil || !strings.Contains(err.Error(), "500 internal"):
				t.Errorf("got %v", err)
			case strings.Contains(err.Error(), "table turns"):
				t.Errorf("the fault went out: %v", err)
			case !strings.Contains(err.Error(), id):
				t.Errorf("the answer names no incident: %v", err)
			case !strings.Contains(log.String(), "table turns is gone") || !strings.Contains(log.String(), id) || !strings.Contains(log.String(), "level=ERROR"):
				t.Errorf("the log lacks the fault: %s", log)
			}
		})
	}
}

// A transport ends a request with an error of its own; that is no fault of ours.
func TestCallerThatWentAwayIsNoFault(t *testing.T) {
	broke := errors.New("Application error 0x100 (remote)")
	for name, want := range map[string]string{"gone": "code=cancelled", "fault": "level=ERROR"} {
		log := &bytes.Buffer{}
		ctx, cancel := context.WithCancelCause(t.Context())
		mux := http.NewServeMux()
		mux.Handle(method, connect.NewUnaryHandlerSimple(method, func(ctx context.Context, _ *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
			cancel(broke)
			<-ctx.Done()
			if name == "fault" {
				return nil, errors.New("table turns is gone")
			}
			return nil, context.Cause(ctx)
		}, Options(time.Second)...))
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, method, strings.NewReader(`"x"`))
		r.Header.Set("Content-Type", "application/json")
		Handler(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), mux).ServeHTTP(httptest.NewRecorder(), r)
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s: the log lacks %s: %s", name, want, log)
		}
	}
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		call, _, _ := serve(t, 3*time.Second, func(ctx context.Context) (*wrapperspb.StringValue, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		start := time.Now()
		if err := call(); err == nil || !strings.Contains(err.Error(), "504 deadline_exceeded") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("ended after %s", took)
		}
	})
}

func TestUndecodableRequestHasItsLine(t *testing.T) {
	log := &bytes.Buffer{}
	mux := http.NewServeMux()
	mux.Handle(method, connect.NewUnaryHandlerSimple(method,
		func(ctx context.Context, _ *wrapperspb.StringValue) (*wrapperspb.StringValue, error) { return ok(ctx) }, Options(time.Second)...))
	h := Handler(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), mux)
	for body, want := range map[string]int{`{"broken"`: 400, `"` + strings.Repeat("x", MaxMessageBytes+1) + `"`: 429, `"fine"`: 200} {
		r := httptest.NewRequest(http.MethodPost, method, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%.12s…: status %d, want %d: %.200s", body, w.Code, want, w.Body.String())
		}
	}
	if n := strings.Count(log.String(), "msg=call"); n != 3 {
		t.Errorf("%d lines for 3 requests: %s", n, log)
	}
}

func TestPanicOutsideOfCalls(t *testing.T) {
	log := &bytes.Buffer{}
	h := Handler(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") }))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "boom") || !strings.Contains(log.String(), "boom") {
		t.Errorf("status %d, body %q, log %s", w.Code, w.Body.String(), log)
	}
}

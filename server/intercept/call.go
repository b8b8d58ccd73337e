package intercept

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"bivouac/edge/protocol"
)

// HeaderRequestID names the answer's header with the request id. It is the
// incident id too, when a call ends with an internal fault.
const HeaderRequestID = "Bivouac-Request-Id"

// call is what one request gathers for its log line.
type call struct {
	id    string
	start time.Time

	mu    sync.Mutex // guards what follows
	code  string
	attrs []slog.Attr
	fault error
	kept  bool // Keep
}

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// Annotate adds ids to the log line of the request in ctx.
func Annotate(ctx context.Context, attrs ...slog.Attr) {
	if c := callOf(ctx); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.attrs = append(c.attrs, attrs...)
	}
}

// Keep shows the log line of the request in ctx to who reads no debug lines: it
// changes what somebody may do.
func Keep(ctx context.Context) {
	if c := callOf(ctx); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.kept = true
	}
}

// RequestID of the request in ctx; empty outside of one.
func RequestID(ctx context.Context) string {
	if c := callOf(ctx); c != nil {
		return c.id
	}
	return ""
}

func (c *call) end(code protocol.Code, fault error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.code, c.fault = string(code), fault
}

// Handler gives every request of next an id and its log line. A panic that no
// interceptor met ends the request with status 500 and the incident id.
func Handler(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{id: newRequestID(), start: time.Now()}
		w.Header().Set(HeaderRequestID, c.id)
		sw := &statusWriter{ResponseWriter: w}
		ctx := context.WithValue(r.Context(), callKey{}, c)
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler {
					panic(p)
				}
				c.end(protocol.CodeInternal, panicked(p))
				if sw.status == 0 {
					http.Error(sw, "internal fault "+c.id, http.StatusInternalServerError)
				}
			}
			c.log(ctx, log, r, sw.status)
		}()
		next.ServeHTTP(sw, r.WithContext(ctx))
	})
}

// log writes the one line, at the level of its end. Faults of our own are errors;
// refusals are not.
func (c *call) log(ctx context.Context, log *slog.Logger, r *http.Request, status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.code == "" {
		c.code = codeOfStatus(status)
	}
	attrs := append([]slog.Attr{
		slog.String("request", c.id),
		slog.String("method", r.URL.Path),
		slog.String("code", c.code),
		slog.Duration("took", time.Since(c.start)),
		slog.String("transport", r.Proto),
	}, c.attrs...)
	if c.fault != nil {
		attrs = append(attrs, slog.String("fault", c.fault.Error()))
	}
	log.LogAttrs(ctx, c.level(), "call", attrs...)
}

// refusals are what somebody asked for and may not have.
var refusals = map[protocol.Code]bool{
	protocol.CodeUnauthenticated: true, protocol.CodePermissionDenied: true, protocol.CodePolicyDenied: true,
	protocol.CodeStaleFence: true, protocol.CodeDataLoss: true,
}

// level of the line: what a person wants to see is the exception.
func (c *call) level() slog.Level {
	switch {
	case c.fault != nil:
		return slog.LevelError
	case c.kept, refusals[protocol.Code(c.code)]:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// codeOfStatus names the end of a request that never reached an interceptor:
// one that could not be decoded, or that is no call at all.
func codeOfStatus(status int) string {
	if status == 0 || status < 400 {
		return "ok"
	}
	switch status {
	case http.StatusNotFound:
		return string(protocol.CodeNotFound)
	case http.StatusTooManyRequests:
		return string(protocol.CodeRateLimited)
	case http.StatusServiceUnavailable:
		return string(protocol.CodeUnavailable)
	}
	if status < 500 {
		return string(protocol.CodeInvalidArgument)
	}
	return string(protocol.CodeInternal)
}

func newRequestID() string {
	var b [10]byte
	rand.Read(b[:])
	return "req_" + hex.EncodeToString(b[:])
}

// panicError is a recovered panic with its stack, for the log alone.
type panicError struct {
	value any
	stack []byte
}

func panicked(v any) error { return &panicError{value: v, stack: debug.Stack()} }

func (p *panicError) Error() string { return "panic: " + fmt.Sprint(p.value) + "\n" + string(p.stack) }

// statusWriter remembers the status and passes flushes on.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Flush sends what was written: streams must not be held back.
func (w *statusWriter) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

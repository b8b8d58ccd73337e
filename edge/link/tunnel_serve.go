package link

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go/http3"

	"bivouac/edge/protocol"
)

// codeHeader carries the code of a refusal.
const codeHeader = "Bivouac-Error-Code"

// maxRefusal bounds the text of a refusal.
const maxRefusal = 4 << 10

// ServeTunnel accepts a tunnel and runs serve on it; the tunnel ends with serve.
// When serve returns nil the other side reads a clean end, otherwise an error. A
// handler that wants to refuse calls RefuseTunnel instead, before. Idle is as in
// TunnelOptions. It must be the handler's last word: it panics with
// http.ErrAbortHandler where a transport knows no other way to break off.
func ServeTunnel(w http.ResponseWriter, r *http.Request, idle time.Duration, serve func(context.Context, *Tunnel) error) {
	if r.Method != http.MethodPost || r.Header.Get("Content-Type") != tunnelType {
		RefuseTunnel(w, protocol.Errorf(protocol.CodeInvalidArgument, "%s is for tunnels only", r.URL.Path))
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	t, err := accept(w, r)
	if err != nil {
		panic(http.ErrAbortHandler) // the caller went
	}
	t.ended = func() { cancel(errTunnelClosed) }
	t.watch(idle)
	context.AfterFunc(ctx, func() { t.end(context.Cause(ctx)) }) // the context ends with the tunnel
	err = serve(ctx, t)
	if err == nil {
		err = t.finish()
	}
	t.wroteAll.Store(err == nil)
	t.end(errTunnelClosed)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// accept answers that the tunnel is open, and takes both bodies.
func accept(w http.ResponseWriter, r *http.Request) (*Tunnel, error) {
	t := &Tunnel{closeWrite: func() error {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the side that serves a tunnel ends its stream by returning")
	}}
	base, count := unwrap(w)
	t.count, t.in, t.out = &metered{counters: new(counters)}, &count.in, &count.out
	w.WriteHeader(http.StatusOK)
	if over, ok := base.(http3.HTTPStreamer); ok {
		s, err := over.HTTPStream()
		if err != nil {
			return nil, err
		}
		t.rw, t.abort, t.finish = s, breakOff(s), s.Close
		return t, nil
	}
	rc := http.NewResponseController(base)
	if err := rc.Flush(); err != nil {
		return nil, err
	}
	t.rw, t.in = pipe{r.Body, flushing{base, rc}}, new(atomic.Int64) // the body counts itself
	t.finish = func() error { return nil }
	t.abort = func(wroteAll bool) {
		r.Body.Close()
		if !wroteAll {
			_ = rc.SetWriteDeadline(time.Unix(1, 0)) // ends a Write that waits
		}
	}
	return t, nil
}

// unwrap finds the transport's own writer, and the counters that the server put
// around it.
func unwrap(w http.ResponseWriter) (http.ResponseWriter, *metered) {
	count := &metered{counters: new(counters)}
	for {
		if c, ok := w.(*countingWriter); ok {
			count = c.one
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return w, count
		}
		w = u.Unwrap()
	}
}

// flushing sends each write at once.
type flushing struct {
	io.Writer
	rc *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	if err == nil {
		err = f.rc.Flush()
	}
	return n, err
}

// RefuseTunnel answers a request for a tunnel with an error: its code and text
// are what Client.Tunnel returns on the other side.
func RefuseTunnel(w http.ResponseWriter, err error) {
	code := protocol.CodeOf(err)
	text := err.Error()
	if code == protocol.CodeInternal {
		text = "internal error"
	}
	w.Header().Set(codeHeader, string(code))
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(protocol.Codes[code].HTTP)
	_, _ = io.WriteString(w, text) // the caller went
}

// refusal is what RefuseTunnel of the other side said.
func refusal(resp *http.Response) error {
	code := protocol.Code(resp.Header.Get(codeHeader))
	if _, known := protocol.Codes[code]; !known {
		return protocol.Errorf(protocol.CodeUnavailable, "the tunnel was answered with %s", resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err != nil {
		return protocol.Errorf(code, "the tunnel was refused")
	}
	return protocol.Errorf(code, "%s", strings.TrimSpace(string(text)))
}

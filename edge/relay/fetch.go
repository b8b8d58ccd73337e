package relay

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// over is a Broker behind an HTTP client.
type over struct {
	brokerv1connect.BrokerServiceClient
	client connect.HTTPClient
	url    string
}

func (o over) Fetch(req *http.Request) (*http.Response, error) {
	at, err := url.Parse(o.url + protocol.EgressPath)
	if err != nil {
		return nil, err
	}
	req.URL, req.Host = at, at.Host
	return o.client.Do(req)
}

// Bounds of package requests, which hostile code writes.
const (
	maxFetches = 32
	maxTarget  = 4 << 10
	maxHeader  = 4 << 10 // of one value
)

// asked are the headers that go to the broker, which judges them again.
var asked = []string{"Accept", "Accept-Encoding", "Content-Encoding", "Content-Type", "Git-Protocol", "If-Modified-Since", "If-None-Match", "Range", "User-Agent"}

// Fetch passes one package request of sandboxed code to the broker, and the answer
// back as it comes. A refusal is text that the tool which asked shows.
func (r *Relay) Fetch(w http.ResponseWriter, in *http.Request, destination string) {
	begun, err := r.fetch(w, in, destination)
	switch {
	case err == nil:
	case begun:
		panic(http.ErrAbortHandler) // half an answer must not look like a whole one
	default:
		refuse(w, err)
	}
}

// refuse says no as plain text. An error without a code says nothing of the inside.
func refuse(w http.ResponseWriter, err error) {
	code, text := protocol.CodeOf(err), err.Error()
	if code == protocol.CodeInternal {
		text = "the runner failed inside; its log says why"
	}
	h := w.Header()
	clear(h)
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(text)+1))
	w.WriteHeader(protocol.Codes[code].HTTP)
	_, _ = io.WriteString(w, text+"\n") // the asker went
}

func (r *Relay) fetch(w http.ResponseWriter, in *http.Request, destination string) (begun bool, err error) {
	target := in.RequestURI
	if len(target) > maxTarget || len(target) == 0 || target[0] != '/' {
		return false, protocol.Errorf(protocol.CodeInvalidArgument, "%s: this is no proxy for other hosts: ask for a path of at most %d bytes", destination, maxTarget)
	}
	ctx, one, err := r.openFetch(in.Context())
	if err != nil {
		return false, err
	}
	defer r.doneFetch(one)
	capability, _, err := r.authority()
	if err != nil {
		return false, err
	}
	req, err := http.NewRequestWithContext(ctx, in.Method, protocol.EgressPath, bodyOf(in))
	if err != nil {
		return false, protocol.Errorf(protocol.CodeInvalidArgument, "%s: the request cannot be passed on", destination)
	}
	req.ContentLength = in.ContentLength
	for _, name := range asked {
		if value := in.Header.Get(name); value != "" && len(value) <= maxHeader {
			req.Header.Set(name, value)
		}
	}
	req.Header.Set(protocol.EgressCapability, capability)
	req.Header.Set(protocol.EgressDestination, destination)
	req.Header.Set(protocol.EgressTarget, target)
	res, err := r.cfg.Broker.Fetch(req)
	if err != nil {
		return false, fetchFailure(ctx, err)
	}
	defer res.Body.Close()
	return true, pass(ctx, w, res)
}

// bodyOf a request that has one.
func bodyOf(in *http.Request) io.Reader {
	if in.ContentLength == 0 {
		return nil
	}
	return in.Body
}

// withheld headers of the broker's answer are about the connection to it.
var withheld = []string{"Connection", "Date", "Alt-Svc", "Bivouac-Request-Id"}

// pass the broker's answer on.
func pass(ctx context.Context, w http.ResponseWriter, res *http.Response) error {
	for name, values := range res.Header {
		if !slices.Contains(withheld, name) {
			w.Header()[name] = values
		}
	}
	rc := http.NewResponseController(w)
	defer context.AfterFunc(ctx, func() { _ = rc.SetWriteDeadline(time.Unix(1, 0)) })() // ends a write that waits
	w.WriteHeader(res.StatusCode)
	if err := rc.Flush(); err != nil { // who asked may wait for no more than this
		return fetchFailure(ctx, err)
	}
	piece := make([]byte, 32<<10)
	for {
		n, err := res.Body.Read(piece)
		if n > 0 {
			if _, werr := w.Write(piece[:n]); werr != nil {
				return fetchFailure(ctx, werr)
			}
			if ferr := rc.Flush(); ferr != nil {
				return fetchFailure(ctx, ferr)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fetchFailure(ctx, err)
		}
	}
}

func (r *Relay) openFetch(ctx context.Context) (context.Context, *call, error) {
	if _, _, err := r.authority(); err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.fetches) >= maxFetches {
		return nil, nil, protocol.Errorf(protocol.CodeRateLimited, "this sandbox has %d requests open already", maxFetches)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	one := &call{cancel}
	r.fetches[one] = struct{}{}
	switch {
	case r.closed != nil:
		cancel(r.closed)
	case r.suspended:
		cancel(ErrNoAuthority)
	}
	return ctx, one, nil
}

func (r *Relay) doneFetch(one *call) {
	one.cancel(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.fetches, one)
}

// fetchFailure has a code, whatever the transport said.
func fetchFailure(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, context.Canceled) {
			return protocol.Errorf(protocol.CodeCancelled, "the request was given up")
		}
		return cause
	}
	var coded *protocol.Error
	if errors.As(err, &coded) {
		return coded
	}
	return protocol.Errorf(protocol.CodeUnavailable, "the broker cannot be reached, or broke off")
}

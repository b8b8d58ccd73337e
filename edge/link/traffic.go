package link

import (
	"io"
	"net/http"
	"path"
	"sync"
	"sync/atomic"
)

// Traffic of one kind of stream: all requests for one method, such as "Attach".
// Bytes are those of bodies, without headers and framing.
type Traffic struct {
	Opened   int64 `json:"opened"`
	Open     int64 `json:"open"`
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
}

// maxKinds bounds a meter: a server's peers choose the paths that they ask for.
const maxKinds = 64

// otherKind stands for all kinds beyond the bound.
const otherKind = "other"

// Meter counts streams by kind.
type Meter struct {
	known bool       // the kinds were named when it was made
	mu    sync.Mutex // guards kinds
	kinds map[string]*counters
}

type counters struct{ opened, open, in, out atomic.Int64 }

// NewMeter counts streams of the named kinds, and all others as one, "other". Without
// names it takes kinds as they come, up to a bound.
func NewMeter(kinds ...string) *Meter {
	m := &Meter{known: len(kinds) > 0, kinds: map[string]*counters{}}
	for _, k := range kinds {
		m.kinds[k] = new(counters)
	}
	return m
}

// kindOf a request: the last element of its path.
func kindOf(urlPath string) string { return path.Base("/" + urlPath) }

// open counts one more stream of a kind, until the returned metered is closed.
func (m *Meter) open(kind string) *metered {
	m.mu.Lock()
	k := m.kinds[kind]
	if k == nil && (m.known || len(m.kinds) >= maxKinds) {
		kind = otherKind
		k = m.kinds[kind]
	}
	if k == nil {
		k = new(counters)
		m.kinds[kind] = k
	}
	m.mu.Unlock()
	k.opened.Add(1)
	k.open.Add(1)
	return &metered{counters: k}
}

// Read returns all counters as they stand.
func (m *Meter) Read() map[string]Traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[string]Traffic, len(m.kinds))
	for kind, k := range m.kinds {
		out[kind] = Traffic{Opened: k.opened.Load(), Open: k.open.Load(), BytesIn: k.in.Load(), BytesOut: k.out.Load()}
	}
	return out
}

// metered is one open stream.
type metered struct {
	*counters
	once sync.Once
}

func (s *metered) close() { s.once.Do(func() { s.open.Add(-1) }) }

// body counts what is read of b into n.
func body(b io.ReadCloser, n *atomic.Int64) io.ReadCloser {
	if b == nil || b == http.NoBody {
		return b
	}
	return &countingBody{b, n}
}

type countingBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

// Streams are the counters of this client, by kind, over all its connections.
func (c *Client) Streams() map[string]Traffic { return c.traffic.Read() }

// Streams are the counters of this server, by kind, for all callers.
func (s *Server) Streams() map[string]Traffic { return s.cfg.Meter.Read() }

// Count counts the streams that next answers.
func (m *Meter) Count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		one := m.open(kindOf(r.URL.Path))
		defer one.close()
		counted := *r
		counted.Body = body(r.Body, &one.in)
		next.ServeHTTP(&countingWriter{w, one}, &counted)
	})
}

// countingWriter counts what a handler answers. What else the writer can do is
// found by Unwrap.
type countingWriter struct {
	http.ResponseWriter
	one *metered
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.one.out.Add(int64(n))
	return n, err
}

// Flush is for handlers that ask for an http.Flusher.
func (w *countingWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap is for http.ResponseController.
func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

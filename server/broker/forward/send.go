package forward

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"regexp"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/secret"
)

// Idle is how long nothing may move before a transfer ends.
const Idle = time.Minute

const pieceBytes = 32 << 10

// Passage is what one answer needs beside its request.
type Passage struct {
	Credential secret.Value
	// Before are values that the credential had.
	Before []secret.Value
	// TakeFunc is asked before bytes pass in either direction. Its error ends it.
	TakeFunc func(n int) error
	// StatusFunc is told the answer's status; nil: nobody is.
	StatusFunc func(status int)
}

// returned are the headers that come back.
var returned = []string{"Accept-Ranges", "Cache-Control", "Content-Encoding", "Content-Range", "Content-Type", "Etag", "Expires", "Last-Modified", "Npm-Notice", "Retry-After", "Vary"}

// Send sends the request and passes the answer on to w as it comes. begun says
// that w has a status already: an error then means that the answer is not whole.
func (r *Request) Send(ctx context.Context, w http.ResponseWriter, p Passage) (begun bool, err error) {
	if r.u.cfg.Credential != "" {
		if err := r.u.cfg.Binding.Put(r.http.Header, p.Credential, "destination "+r.u.cfg.Name); err != nil {
			return false, err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(Idle, func() {
		cancel(protocol.Errorf(protocol.CodeUnavailable, "destination %s: nothing moved for %s", r.u.cfg.Name, Idle))
	})
	defer idle.Stop()
	moved := func(n int) error {
		idle.Reset(Idle)
		return p.TakeFunc(n)
	}
	req := r.http.WithContext(ctx)
	if req.Body != nil {
		req.Body = &countedBody{ReadCloser: req.Body, moved: moved, left: MaxBody}
	}
	res, err := r.u.cfg.Client.Do(req)
	if err != nil {
		return false, r.failed(ctx, err)
	}
	defer res.Body.Close()
	if p.StatusFunc != nil {
		p.StatusFunc(res.StatusCode)
	}
	redactor := secret.NewRedactor(append([]secret.Value{p.Credential}, p.Before...)...)
	if err := r.head(res, w.Header(), redactor); err != nil {
		return false, err
	}
	if length := res.Header.Get("Content-Length"); length != "" && r.u.cfg.Credential == "" { // nothing in it is redacted
		w.Header().Set("Content-Length", length)
	}
	rc := http.NewResponseController(w)
	defer context.AfterFunc(ctx, func() { _ = rc.SetWriteDeadline(time.Unix(1, 0)) })() // ends a write to somebody who does not read
	w.WriteHeader(res.StatusCode)
	if err := rc.Flush(); err != nil {
		return true, r.failed(ctx, err)
	}
	return true, r.body(ctx, w, res.Body, redactor, moved)
}

// head writes the headers that come back. A redirect stays within the registry,
// seen from the sandbox.
func (r *Request) head(res *http.Response, out http.Header, redactor *secret.Redactor) error {
	name := r.u.cfg.Name
	if e := res.Header.Get("Content-Encoding"); r.u.cfg.Credential != "" && e != "" && !strings.EqualFold(e, "identity") {
		// What cannot be read cannot be redacted.
		return protocol.Errorf(protocol.CodeUnavailable, "destination %s answered with an encoding that was not asked for", name)
	}
	for _, h := range returned {
		if value := res.Header.Get(h); value != "" {
			out.Set(h, redactor.Text(value))
		}
	}
	if res.StatusCode < 300 || res.StatusCode > 399 || res.Header.Get("Location") == "" {
		return nil
	}
	to, err := res.Location()
	if err != nil || !r.u.covers(to) {
		where := "somewhere that cannot be read"
		if err == nil {
			where = to.Scheme + "://" + clip(to.Host, 200)
		}
		return protocol.Errorf(protocol.CodePolicyDenied, "destination %s leads to %s, where it does not reach: broker.hcl needs a url that answers by itself", name, where)
	}
	base := strings.TrimSuffix(r.u.cfg.Base.EscapedPath(), "/")
	at := strings.TrimPrefix(to.EscapedPath(), base)
	if to.RawQuery != "" {
		at += "?" + to.RawQuery
	}
	out.Set("Location", redactor.Text(at))
	return nil
}

// body passes the answer on, piece by piece, without what was injected.
func (r *Request) body(ctx context.Context, w http.ResponseWriter, in io.Reader, redactor *secret.Redactor, moved func(int) error) error {
	out := func(p []byte) error {
		if len(p) == 0 {
			return nil
		}
		if err := moved(len(p)); err != nil {
			return err
		}
		_, err := w.Write(p)
		if err == nil {
			err = http.NewResponseController(w).Flush()
		}
		return err
	}
	s := redactor.Stream()
	if isBytes(w.Header().Get("Content-Type")) {
		s = redactor.Bytes()
	}
	piece := make([]byte, pieceBytes)
	for {
		n, err := in.Read(piece)
		text := piece[:n]
		if redactor.Longest() > 0 {
			text = []byte(s.Next(string(piece[:n])))
		}
		if werr := out(text); werr != nil {
			return r.failed(ctx, werr)
		}
		switch {
		case errors.Is(err, io.EOF):
			return out([]byte(s.Rest()))
		case err != nil:
			return r.failed(ctx, err)
		}
	}
}

// kinds of answers that are no text.
var kinds = regexp.MustCompile(`^(image|audio|video|font)/|^(application|binary)/(octet-stream|gzip|zip|zstd|wasm|java-archive|x-(gzip|gtar|tar|xz|bzip2|lzma|zip-compressed|rpm|debian-package|git-upload-pack-result)|vnd\.(oci\.image\.layer|docker\.image\.rootfs)\.[a-z0-9.+]+)$`)

// isBytes reports a Content-Type of which nothing is written with escapes; what is not
// known is text.
func isBytes(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kinds.MatchString(kind)
}

// failed prefers what ended the transfer to what its end looked like. What a
// library says of a connection may hold a URL, and is not passed on.
func (r *Request) failed(ctx context.Context, err error) error {
	var refused *egress.Refused
	var coded *protocol.Error
	switch {
	case errors.As(err, &refused):
		return refused.Err
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case errors.As(err, &coded):
		return coded
	}
	return protocol.Errorf(protocol.CodeUnavailable, "destination %s cannot be reached, or broke off", r.u.cfg.Name)
}

// countedBody is a request's body with a bound.
type countedBody struct {
	io.ReadCloser
	moved func(int) error
	left  int
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, protocol.Errorf(protocol.CodePolicyDenied, "the body of the request has more than %d MiB", MaxBody>>20)
	}
	if n > 0 {
		if merr := b.moved(n); merr != nil {
			return 0, merr
		}
	}
	return n, err
}

// Package transfer moves blobs over streams in bounded chunks: what the public
// API and the runner listener share. It guarantees that no more than one chunk
// of a blob is in memory, and that a size is refused before its first byte is
// taken. It refuses to decide who may read or write a blob. Test it with go test
// alone.
package transfer

import (
	"context"
	"encoding/hex"
	"io"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/intercept"
)

// Bounds of one blob.
const (
	MaxTime  = 15 * time.Minute // on its way
	MaxBytes = 512 << 20        // where the configuration says nothing else
)

// Blobs keeps bytes under their digest.
type Blobs interface {
	// Put stores what r gives when it has exactly this digest and size.
	Put(ctx context.Context, digest string, size int64, r io.Reader) error
	// Open reads a blob; wrong bytes end it as data_loss.
	Open(ctx context.Context, digest string) (content io.ReadCloser, size int64, err error)
}

// CheckDigest refuses a text that is no digest.
func CheckDigest(d string) error {
	digits, ok := strings.CutPrefix(d, "sha256:")
	if b, err := hex.DecodeString(digits); ok && err == nil && len(b) == 32 && digits == strings.ToLower(digits) {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, `a digest is "sha256:" and 64 hexadecimal digits in lower case`)
}

// CheckSize refuses a blob that is larger than limit.
func CheckSize(size, limit int64) error {
	if size >= 0 && size <= limit {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalidArgument,
		"a blob of %d bytes is too large: at most %d; leave build output and data sets out with .gitignore", size, limit)
}

// Reader reads the chunks of a stream as one content. next gives io.EOF at the
// end of the stream.
func Reader(first []byte, next func() ([]byte, error)) io.Reader {
	return &reader{rest: first, next: next}
}

type reader struct {
	rest []byte
	next func() ([]byte, error)
}

func (c *reader) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		var err error
		if c.rest, err = c.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Send cuts r into chunks.
func Send(ctx context.Context, r io.Reader, send func([]byte) error) error {
	buf := make([]byte, intercept.ChunkBytes)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return err
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return nil
		default:
			return err
		}
	}
}

// Stream is the receiving half of a client's stream.
type Stream[M any] interface {
	Receive() bool
	Msg() *M
	Err() error
}

// First takes the message that names a blob.
func First[M any](s Stream[M]) (*M, error) {
	if s.Receive() {
		return s.Msg(), nil
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the first message must name the blob's digest and size")
}

// Rest makes the chunks of the messages that follow available to Reader.
func Rest[M any](s Stream[M], chunk func(*M) []byte) func() ([]byte, error) {
	return func() ([]byte, error) {
		if s.Receive() {
			return chunk(s.Msg()), nil
		}
		if err := s.Err(); err != nil {
			return nil, err
		}
		return nil, io.EOF
	}
}

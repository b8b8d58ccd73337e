package ledger

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"bivouac/edge/protocol"
)

// An export is lines of words:
//
//	bivouac-ledger-v1
//	head <signed head>
//	segment <number> <leaf, base64> <proof hashes, base64…>
//	event <stored bytes, base64> <hash, base64>     of the segment above, in order
//	end <SHA-256 of all bytes above, hex>
const (
	firstLine   = "bivouac-ledger-v1"
	wordHead    = "head"
	wordSegment = "segment"
	wordEvent   = "event"
	wordEnd     = "end"
)

// Writer writes an export. Segments of one session come in order, each followed
// by its events.
type Writer struct {
	out *bufio.Writer
	sum hash.Hash
	err error
}

// NewWriter begins an export under a signed head.
func NewWriter(w io.Writer, head string) *Writer {
	x := &Writer{sum: sha256.New()}
	x.out = bufio.NewWriterSize(io.MultiWriter(w, x.sum), 64<<10)
	x.line("%s\n%s %s\n", firstLine, wordHead, head)
	return x
}

func (w *Writer) line(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.out, format, args...)
	}
}

// Segment number n with its proof.
func (w *Writer) Segment(n int64, s Segment, proof []Hash) error {
	w.line("%s %d %s", wordSegment, n, encoded(s.Text()))
	for _, h := range proof {
		w.line(" %s", encoded(h[:]))
	}
	w.line("\n")
	return w.err
}

// Event of the segment above.
func (w *Writer) Event(stored, hash []byte) error {
	w.line("%s %s %s\n", wordEvent, encoded(stored), encoded(hash))
	return w.err
}

// Close writes the last line.
func (w *Writer) Close() error {
	if w.err == nil {
		w.err = w.out.Flush()
	}
	w.line("%s %s\n", wordEnd, hex.EncodeToString(w.sum.Sum(nil)))
	if w.err == nil {
		w.err = w.out.Flush()
	}
	if w.err != nil {
		return protocol.Errorf(protocol.CodeUnavailable, "the export cannot be written: %w", w.err)
	}
	return nil
}

func encoded(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

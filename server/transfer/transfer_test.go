package transfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/intercept"
)

func TestChunksMakeTheSameContent(t *testing.T) {
	for _, size := range []int{0, 1, intercept.ChunkBytes - 1, intercept.ChunkBytes, intercept.ChunkBytes + 1, 3*intercept.ChunkBytes + 7} {
		content := bytes.Repeat([]byte("abcdefg"), size/7+1)[:size]
		var chunks [][]byte
		err := Send(t.Context(), bytes.NewReader(content), func(b []byte) error {
			if len(b) == 0 || len(b) > intercept.ChunkBytes {
				t.Errorf("a chunk of %d bytes", len(b))
			}
			chunks = append(chunks, bytes.Clone(b))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// An empty chunk in between is harmless.
		chunks = append([][]byte{nil}, chunks...)
		got, err := io.ReadAll(Reader(nil, func() ([]byte, error) {
			if len(chunks) == 0 {
				return nil, io.EOF
			}
			next := chunks[0]
			chunks = chunks[1:]
			return next, nil
		}))
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes came back as %d (%v)", size, len(got), err)
		}
	}
}

func TestSendEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the reader is gone")
	cancel(gone)
	if err := Send(ctx, strings.NewReader("x"), func([]byte) error { return nil }); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	if err := Send(t.Context(), strings.NewReader("x"), func([]byte) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

func TestDigestAndSize(t *testing.T) {
	good := "sha256:" + strings.Repeat("0a", 32)
	for _, bad := range []string{"", "sha256:", strings.ToUpper(good), good[:len(good)-1], good + "0", "md5:" + strings.Repeat("0a", 32), "sha256:" + strings.Repeat("zz", 32)} {
		if err := CheckDigest(bad); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := CheckDigest(good); err != nil {
		t.Error(err)
	}
	for size, fine := range map[int64]bool{-1: false, 0: true, 10: true, 11: false} {
		if err := CheckSize(size, 10); (err == nil) != fine {
			t.Errorf("size %d: %v", size, err)
		}
	}
}

type stream struct {
	messages []string
	err      error
	now      string
}

func (s *stream) Receive() bool {
	if len(s.messages) == 0 {
		return false
	}
	s.now, s.messages = s.messages[0], s.messages[1:]
	return true
}
func (s *stream) Msg() *string { return &s.now }
func (s *stream) Err() error   { return s.err }

func TestFirstAndRest(t *testing.T) {
	if _, err := First(&stream{}); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("an empty stream: %v", err)
	}
	broken := errors.New("broken")
	if _, err := First(&stream{err: broken}); !errors.Is(err, broken) {
		t.Errorf("a broken stream: %v", err)
	}
	s := &stream{messages: []string{"name", "con", "tent"}}
	first, err := First(s)
	if err != nil || *first != "name" {
		t.Fatal(first, err)
	}
	chunk := func(m *string) []byte { return []byte(*m) }
	if got, err := io.ReadAll(Reader(nil, Rest(s, chunk))); err != nil || string(got) != "content" {
		t.Errorf("%q %v", got, err)
	}
	cut := &stream{messages: []string{"con"}, err: broken}
	if _, err := io.ReadAll(Reader(nil, Rest(cut, chunk))); !errors.Is(err, broken) {
		t.Errorf("a cut stream ended well: %v", err)
	}
}

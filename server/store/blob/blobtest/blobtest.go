// Package blobtest is what every keeper of blobs must pass: a directory today,
// an object store later.
package blobtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/store/blob"
)

// Blobs is what is tested.
type Blobs interface {
	Put(ctx context.Context, digest string, size int64, r io.Reader) error
	Open(ctx context.Context, digest string) (io.ReadCloser, int64, error)
	Stat(digest string) (int64, error)
	Remove(digest string) error
}

// Limit that open must configure.
const Limit = 1 << 20

// Run tests a keeper. open returns an empty one whose limit is Limit, and a way
// to damage a stored blob behind its back.
func Run(t *testing.T, open func(*testing.T) (b Blobs, damage func(digest string))) {
	t.Run("what is put is read", func(t *testing.T) { readBack(t, open) })
	t.Run("wrong bytes are refused", func(t *testing.T) { wrongBytes(t, open) })
	t.Run("names are digests only", func(t *testing.T) { names(t, open) })
	t.Run("limits", func(t *testing.T) { limits(t, open) })
	t.Run("damage is data loss", func(t *testing.T) { damaged(t, open) })
	t.Run("an ended context", func(t *testing.T) { ended(t, open) })
	t.Run("many at once", func(t *testing.T) { atOnce(t, open) })
}

type opener = func(*testing.T) (Blobs, func(string))

func readBack(t *testing.T, open opener) {
	b, _ := open(t)
	for _, content := range []string{"", "a patch", strings.Repeat("bytes ", 100_000)} {
		digest := blob.Digest([]byte(content))
		if _, err := b.Stat(digest); code(err) != protocol.CodeNotFound {
			t.Fatalf("before it was put: %v", err)
		}
		if _, _, err := b.Open(t.Context(), digest); code(err) != protocol.CodeNotFound {
			t.Fatalf("opened before it was put: %v", err)
		}
		for range 2 { // a second time changes nothing
			if err := b.Put(t.Context(), digest, int64(len(content)), strings.NewReader(content)); err != nil {
				t.Fatal(err)
			}
		}
		if got := read(t, b, digest); got != content {
			t.Fatalf("read %d bytes, put %d", len(got), len(content))
		}
		if n, err := b.Stat(digest); err != nil || n != int64(len(content)) {
			t.Fatalf("stat: %d, %v", n, err)
		}
		for range 2 {
			if err := b.Remove(digest); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Stat(digest); code(err) != protocol.CodeNotFound {
			t.Fatalf("after removal: %v", err)
		}
	}
}

func wrongBytes(t *testing.T, open opener) {
	b, _ := open(t)
	digest := blob.Digest([]byte("right"))
	for name, try := range map[string]struct {
		content string
		size    int64
	}{
		"another content":             {"wrong", 5},
		"too short":                   {"righ", 5},
		"too long":                    {"right!", 5},
		"another size":                {"right", 6},
		"another content, no size":    {"wrong", blob.Unknown},
		"nothing":                     {"", blob.Unknown},
		"a shorter size than it has":  {"right", 4},
		"an empty size for something": {"right", 0},
	} {
		if err := b.Put(t.Context(), digest, try.size, strings.NewReader(try.content)); code(err) != protocol.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := b.Stat(digest); code(err) != protocol.CodeNotFound {
			t.Errorf("%s was kept: %v", name, err)
		}
	}
	broken := io.MultiReader(strings.NewReader("rig"), failing{})
	if err := b.Put(t.Context(), digest, 5, broken); !errors.Is(err, errBroken) {
		t.Errorf("a broken upload: %v", err)
	}
	if err := b.Put(t.Context(), digest, blob.Unknown, strings.NewReader("right")); err != nil {
		t.Fatal(err)
	}
	// Also when it is there already, wrong bytes are told so, and it stays.
	if err := b.Put(t.Context(), digest, 5, strings.NewReader("wrong")); code(err) != protocol.CodeInvalidArgument {
		t.Errorf("wrong bytes for a blob that is there: %v", err)
	}
	if got := read(t, b, digest); got != "right" {
		t.Errorf("read %q", got)
	}
}

func names(t *testing.T, open opener) {
	b, _ := open(t)
	good := blob.Digest(nil)
	for _, bad := range []string{"", "..", "../../etc/passwd", good[:63], good + "0", strings.ToUpper(good), "/" + good[1:], good[:60] + "/../"} {
		if err := b.Put(t.Context(), bad, 0, strings.NewReader("")); code(err) != protocol.CodeInvalidArgument {
			t.Errorf("put %q: %v", bad, err)
		}
		if _, _, err := b.Open(t.Context(), bad); code(err) != protocol.CodeInvalidArgument {
			t.Errorf("open %q: %v", bad, err)
		}
		if err := b.Remove(bad); code(err) != protocol.CodeInvalidArgument {
			t.Errorf("remove %q: %v", bad, err)
		}
	}
	if err := b.Put(t.Context(), good, 0, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
}

func limits(t *testing.T, open opener) {
	b, _ := open(t)
	fits := bytes.Repeat([]byte{7}, Limit)
	if err := b.Put(t.Context(), blob.Digest(fits), Limit, bytes.NewReader(fits)); err != nil {
		t.Fatal(err)
	}
	over := append(fits, 7)
	for _, size := range []int64{Limit + 1, blob.Unknown} {
		if err := b.Put(t.Context(), blob.Digest(over), size, bytes.NewReader(over)); code(err) != protocol.CodeInvalidArgument {
			t.Errorf("over the limit, size %d: %v", size, err)
		}
	}
	if _, err := b.Stat(blob.Digest(over)); code(err) != protocol.CodeNotFound {
		t.Errorf("what is over the limit was kept: %v", err)
	}
}

func damaged(t *testing.T, open opener) {
	b, damage := open(t)
	whole, hurt := blob.Digest([]byte("whole")), blob.Digest([]byte("hurt"))
	for digest, content := range map[string]string{whole: "whole", hurt: "hurt"} {
		if err := b.Put(t.Context(), digest, blob.Unknown, strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	damage(hurt)
	r, _, err := b.Open(t.Context(), hurt)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadAll(r); code(err) != protocol.CodeDataLoss {
		t.Fatalf("a damaged blob reads as %v", err)
	}
	if got := read(t, b, whole); got != "whole" {
		t.Fatalf("read %q", got)
	}
}

func ended(t *testing.T, open opener) {
	b, _ := open(t)
	digest := blob.Digest([]byte("late"))
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("the caller went away")
	cancel(reason)
	if err := b.Put(ctx, digest, 4, strings.NewReader("late")); !errors.Is(err, reason) {
		t.Errorf("put: %v", err)
	}
	if _, err := b.Stat(digest); code(err) != protocol.CodeNotFound {
		t.Errorf("it was kept: %v", err)
	}
	if err := b.Put(t.Context(), digest, 4, strings.NewReader("late")); err != nil {
		t.Fatal(err)
	}
	r, _, err := b.Open(ctx, digest)
	if err == nil {
		defer r.Close()
		_, err = io.ReadAll(r)
	}
	if !errors.Is(err, reason) {
		t.Errorf("read: %v", err)
	}
}

func atOnce(t *testing.T, open opener) {
	b, _ := open(t)
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			content := bytes.Repeat([]byte{byte(i % 4)}, 10_000)
			if err := b.Put(t.Context(), blob.Digest(content), int64(len(content)), bytes.NewReader(content)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for i := range 4 {
		content := bytes.Repeat([]byte{byte(i)}, 10_000)
		if got := read(t, b, blob.Digest(content)); got != string(content) {
			t.Errorf("blob %d differs", i)
		}
	}
}

func read(t *testing.T, b Blobs, digest string) string {
	t.Helper()
	r, size, err := b.Open(t.Context(), digest)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	if err != nil || int64(len(content)) != size {
		t.Fatalf("read %d of %d bytes: %v", len(content), size, err)
	}
	return string(content)
}

func code(err error) protocol.Code { return protocol.CodeOf(err) }

var errBroken = errors.New("the connection broke")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }

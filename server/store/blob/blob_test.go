package blob_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/store/blob"
	"bivouac/server/store/blob/blobtest"
)

func TestDirectory(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) (blobtest.Blobs, func(string)) {
		path := filepath.Join(t.TempDir(), "blobs")
		d, err := blob.Open(blob.Config{Path: path, MaxBytes: blobtest.Limit})
		if err != nil {
			t.Fatal(err)
		}
		return d, func(digest string) {
			f := filepath.Join(path, digest[:2], digest[2:4], digest)
			if err := os.WriteFile(f, []byte("evil"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestOpenDropsUnfinished(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blobs")
	d, err := blob.Open(blob.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	whole := blob.Digest([]byte("whole"))
	if err := d.Put(t.Context(), whole, 5, strings.NewReader("whole")); err != nil {
		t.Fatal(err)
	}
	half, fresh := filepath.Join(path, "tmp", "put-1234"), filepath.Join(path, "tmp", "put-5678")
	for _, p := range []string{half, fresh} {
		if err := os.WriteFile(p, []byte("ha"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if long := time.Now().Add(-2 * time.Hour); os.Chtimes(half, long, long) != nil {
		t.Fatal("the clock of the file system")
	}
	if d, err = blob.Open(blob.Config{Path: path}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(half); !os.IsNotExist(err) {
		t.Errorf("the half-written file is still there: %v", err)
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Errorf("what another server writes now was dropped: %v", err)
	}
	if n, err := d.Stat(whole); err != nil || n != 5 {
		t.Errorf("the whole one: %d, %v", n, err)
	}
}

func TestOpenNeedsParent(t *testing.T) {
	_, err := blob.Open(blob.Config{Path: filepath.Join(t.TempDir(), "missing", "blobs")})
	if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "missing") {
		t.Errorf("got %v", err)
	}
}

package blob_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/server/store/blob"
)

// What is old is told, and who puts it again makes it young.
func TestOlder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blobs")
	d, err := blob.Open(blob.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, text := range []string{"one", "two", "three"} {
		digest := blob.Digest([]byte(text))
		if err := d.Put(t.Context(), digest, blob.Unknown, strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		all = append(all, digest)
		old := time.Now().Add(-2 * time.Hour)
		if err := os.Chtimes(filepath.Join(path, digest[:2], digest[2:4], digest), old, old); err != nil {
			t.Fatal(err)
		}
	}
	for _, foreign := range []string{"place", "tmp/put-x", all[0][:2] + "/stray"} {
		if err := os.WriteFile(filepath.Join(path, foreign), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	older := func(most int) (out []string) {
		t.Helper()
		if err := d.Older(time.Now().Add(-time.Hour), func(digest string) bool { out = append(out, digest); return len(out) < most }); err != nil {
			t.Fatal(err)
		}
		slices.Sort(out)
		return out
	}
	slices.Sort(all)
	if got := older(10); !slices.Equal(got, all) {
		t.Errorf("old: %v, want %v", got, all)
	}
	if got := older(1); len(got) != 1 {
		t.Errorf("it goes on after no: %v", got)
	}
	if err := d.Put(t.Context(), blob.Digest([]byte("two")), 3, strings.NewReader("two")); err != nil {
		t.Fatal(err)
	}
	if got := older(10); len(got) != 2 || slices.Contains(got, blob.Digest([]byte("two"))) {
		t.Errorf("after it was put again: %v", got)
	}
}

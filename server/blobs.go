package server

import (
	"context"
	"io"
	"strings"
	"time"

	"bivouac/server/store/blob"
)

// blobs keeps artifacts under the digests of the contracts, "sha256:" and 64
// hexadecimal digits; the directory's own names are the digits.
type blobs struct{ dir *blob.Dir }

func (b blobs) Put(ctx context.Context, digest string, size int64, r io.Reader) error {
	return b.dir.Put(ctx, strings.TrimPrefix(digest, "sha256:"), size, r)
}

// Older and Remove are the engine's, for what nobody may read any more.
func (b blobs) Older(before time.Time, each func(digest string) bool) error {
	return b.dir.Older(before, func(digest string) bool { return each("sha256:" + digest) })
}

func (b blobs) Remove(digest string) error {
	return b.dir.Remove(strings.TrimPrefix(digest, "sha256:"))
}

func (b blobs) Open(ctx context.Context, digest string) (io.ReadCloser, int64, error) {
	return b.dir.Open(ctx, strings.TrimPrefix(digest, "sha256:"))
}

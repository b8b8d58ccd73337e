// Package blob keeps bytes outside the database, each under the SHA-256 of its
// content: workspaces, patches, checkpoints and outputs. Who may read which one
// is the store's to say, by an artifact row; a digest alone is no permission.
//
// It guarantees that a blob that exists is whole and synced, that the same
// content is kept once, and that bytes which no longer match their digest are
// reported as data loss where they are read, never returned as a clean end. It
// refuses content of another digest or size than announced, and anything over
// its limit. Test it, and every other implementation, with blobtest.
package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
)

// Unknown is the size of content that is not known before it is read.
const Unknown int64 = -1

// Config of a directory of blobs.
type Config struct {
	// Path of the directory; it is made when absent, its parent is not.
	Path string
	// MaxBytes of one blob; zero means 1 GiB.
	MaxBytes int64
}

// Dir is a directory of blobs: <path>/<2 hex>/<2 hex>/<64 hex>. It is safe for
// concurrent use, also by several processes.
type Dir struct {
	path string
	max  int64
}

// tmp holds what is being written; a start drops what nobody has written to for
// as long as abandoned.
const (
	tmp       = "tmp"
	abandoned = time.Hour
)

// Open makes or opens a directory and drops what an earlier process left half
// written.
func Open(c Config) (*Dir, error) {
	d := &Dir{path: c.Path, max: c.MaxBytes}
	if d.max <= 0 {
		d.max = 1 << 30
	}
	for _, p := range []string{d.path, filepath.Join(d.path, tmp)} {
		if err := os.Mkdir(p, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, &protocol.Error{Code: protocol.CodeFailedPrecondition, Err: err,
				Message: fmt.Sprintf("blob directory %s cannot be made (%v): make its parent, and let this user write there", p, err)}
		}
	}
	left, err := filepath.Glob(filepath.Join(d.path, tmp, "put-*"))
	if err != nil {
		return nil, fmt.Errorf("blob: %s: %w", d.path, err)
	}
	for _, p := range left {
		if st, err := os.Stat(p); err == nil && time.Since(st.ModTime()) < abandoned {
			continue // another server of this directory may be writing it
		}
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("blob: drop unfinished %s: %w", p, err)
		}
	}
	return d, nil
}

// Digest is the name of content.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// place is the file of a digest. Only 64 lower-case hex digits are a digest, so
// no name leads out of the directory.
func (d *Dir) place(digest string) (string, error) {
	if len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "" {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "a blob's digest is 64 lower-case hex digits of SHA-256")
	}
	return filepath.Join(d.path, digest[:2], digest[2:4], digest), nil
}

// Stat is the size of a blob.
func (d *Dir) Stat(digest string) (int64, error) {
	p, err := d.place(digest)
	if err != nil {
		return 0, err
	}
	st, err := os.Stat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, absent(digest)
	} else if err != nil {
		return 0, fmt.Errorf("blob: %w", err)
	}
	return st.Size(), nil
}

func absent(digest string) error {
	return protocol.Errorf(protocol.CodeNotFound, "blob %s not found", digest)
}

// Put stores what r holds, when it has the digest and, unless that is Unknown,
// the size. A blob that is there already is not written again, but r is read and
// checked all the same: who sends wrong bytes is told so.
func (d *Dir) Put(ctx context.Context, digest string, size int64, r io.Reader) error {
	place, err := d.place(digest)
	if err != nil {
		return err
	}
	if size > d.max {
		return d.tooLarge(digest)
	}
	if _, err := os.Stat(place); err == nil && d.renew(place) == nil {
		_, err := d.copy(ctx, io.Discard, digest, size, r)
		return err
	}
	f, err := os.CreateTemp(filepath.Join(d.path, tmp), "put-*")
	if err != nil {
		return d.problem(err)
	}
	defer os.Remove(f.Name()) // after the rename there is nothing to remove
	defer f.Close()
	if _, err := d.copy(ctx, f, digest, size, r); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return d.problem(err)
	}
	if err := f.Close(); err != nil {
		return d.problem(err)
	}
	return d.settle(f.Name(), place)
}

// copy streams and checks.
func (d *Dir) copy(ctx context.Context, w io.Writer, digest string, size int64, r io.Reader) (int64, error) {
	h := sha256.New()
	limit := d.max
	if size >= 0 {
		limit = size
	}
	n, err := io.Copy(io.MultiWriter(w, h), io.LimitReader(&reader{ctx, r}, limit+1))
	switch {
	case err != nil && ctx.Err() != nil:
		return n, context.Cause(ctx)
	case err != nil:
		return n, d.problem(err)
	case n > limit && size < 0:
		return n, d.tooLarge(digest)
	case size >= 0 && n != size:
		return n, protocol.Errorf(protocol.CodeInvalidArgument, "blob %s was announced with %d bytes and has another size", digest, size)
	case hex.EncodeToString(h.Sum(nil)) != digest:
		return n, protocol.Errorf(protocol.CodeInvalidArgument, "the bytes sent as blob %s have another digest: send it again", digest)
	}
	return n, nil
}

// settle moves a synced file to its place and syncs the folders, so that the
// name outlives a power cut.
func (d *Dir) settle(from, place string) error {
	inner := filepath.Dir(place)
	if err := os.MkdirAll(inner, 0o700); err != nil {
		return d.problem(err)
	}
	if err := os.Rename(from, place); err != nil {
		return d.problem(err)
	}
	for _, dir := range []string{inner, filepath.Dir(inner), d.path} {
		if err := durable.SyncDir(dir); err != nil {
			return d.problem(err)
		}
	}
	return nil
}

// Open reads a blob. The reader returns data_loss instead of io.EOF when the
// bytes are not those of the digest.
func (d *Dir) Open(ctx context.Context, digest string) (io.ReadCloser, int64, error) {
	place, err := d.place(digest)
	if err != nil {
		return nil, 0, err
	}
	f, err := os.Open(place)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, absent(digest)
	} else if err != nil {
		return nil, 0, fmt.Errorf("blob: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("blob: %w", err)
	}
	return &verifier{file: f, src: &reader{ctx, f}, hash: sha256.New(), digest: digest}, st.Size(), nil
}

// Remove deletes a blob; one that is not there is removed already.
func (d *Dir) Remove(digest string) error {
	place, err := d.place(digest)
	if err != nil {
		return err
	}
	if err := os.Remove(place); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d.problem(err)
	}
	return nil
}

func (d *Dir) tooLarge(digest string) error {
	return protocol.Errorf(protocol.CodeInvalidArgument, "blob %s is larger than the limit of %d bytes", digest, d.max)
}

func (d *Dir) problem(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &protocol.Error{Code: protocol.CodeUnavailable, Err: err,
			Message: fmt.Sprintf("blob directory %s is full: free disk space there, then send it again", d.path)}
	}
	return fmt.Errorf("blob: %s: %w", d.path, err)
}

// reader ends a copy when its context does.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// verifier hashes what passes through and judges it at the end.
type verifier struct {
	file   *os.File
	src    io.Reader
	hash   hash.Hash
	digest string
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.src.Read(p)
	v.hash.Write(p[:n])
	if err == io.EOF && hex.EncodeToString(v.hash.Sum(nil)) != v.digest {
		return n, protocol.Errorf(protocol.CodeDataLoss, "blob %s is damaged on disk: restore it from a backup", v.digest)
	}
	return n, err
}

func (v *verifier) Close() error { return v.file.Close() }

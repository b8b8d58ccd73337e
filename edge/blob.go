package edge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/state"
)

// chunkBytes of one message of a blob.
const chunkBytes = 256 << 10

// stage fetches the blobs that a turn's work names, each once and whole.
func (d *Daemon) stage(ctx context.Context, t *turn) error {
	var work runnerv1.Work
	if err := proto.Unmarshal(t.begin.GetWork(), &work); err != nil {
		return protocol.Errorf(protocol.CodeIncompatible, "the work of attempt %s is not understood: %w; upgrade bivouac-edge", t.id, err)
	}
	w := work.GetTurn()
	for _, digest := range append([]string{w.GetWorkspaceDigest(), w.GetCheckpointPatchDigest()}, w.GetPatchDigests()...) {
		if digest == "" {
			continue
		}
		if _, err := os.Stat(t.dir.Blob(digest)); err == nil {
			continue
		}
		if _, err := d.line.wait(ctx); err != nil {
			return err
		}
		if err := d.getBlob(ctx, t, digest); err != nil {
			return err
		}
	}
	return nil
}

// getBlob writes a blob beside its place and moves it there when its digest is
// the one that was asked for.
func (d *Daemon) getBlob(ctx context.Context, t *turn, digest string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if b, err := hex.DecodeString(state.Hex(digest)); err != nil || len(b) != sha256.Size {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the work of attempt %s names %q, which is no digest", t.id, digest)
	}
	stream, err := d.client.GetBlob(ctx, &runnerv1.GetBlobRequest{AttemptId: t.id.String(), Fence: int64(t.fence), Digest: digest})
	if err != nil {
		return protocol.FromConnect(err)
	}
	defer stream.Close()
	part := t.dir.Blob(digest) + ".part"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return protocol.Errorf(protocol.CodeUnavailable, "a blob of attempt %s cannot be kept: %w", t.id, err)
	}
	defer os.Remove(part)
	sum := sha256.New()
	for err == nil && stream.Receive() {
		_, err = io.MultiWriter(f, sum).Write(stream.Msg().GetChunk())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return protocol.Errorf(protocol.CodeUnavailable, "a blob of attempt %s cannot be kept: %w; check the disk", t.id, err)
	}
	if err := stream.Err(); err != nil {
		return protocol.FromConnect(err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != state.Hex(digest) {
		return protocol.Errorf(protocol.CodeUnavailable, "the blob %s of attempt %s came with the digest %s", digest, t.id, got)
	}
	return os.Rename(part, t.dir.Blob(digest))
}

// putBlob stores a patch at the server before the record that names it is
// reported.
func (d *Daemon) putBlob(ctx context.Context, t *turn, digest string) error {
	f, err := os.Open(t.dir.Blob(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return protocol.Errorf(protocol.CodeDataLoss, "the patch %s of attempt %s is not in its directory", digest, t.id)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := d.client.PutBlob(ctx)
	if err != nil {
		return protocol.FromConnect(err)
	}
	first := &runnerv1.PutBlobRequest{AttemptId: t.id.String(), Fence: int64(t.fence), Digest: digest, Size: info.Size()}
	err = stream.Send(first)
	for buf := make([]byte, chunkBytes); err == nil; {
		n, readErr := f.Read(buf)
		if n > 0 {
			err = stream.Send(&runnerv1.PutBlobRequest{Chunk: buf[:n]})
		}
		if errors.Is(readErr, io.EOF) {
			break
		}
		if readErr != nil {
			return readErr
		}
	}
	// A failed Send means that the server answered already: its answer says why.
	_, err = stream.CloseAndReceive()
	return protocol.FromConnect(err)
}

package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
)

// chunkBytes is how much of a blob travels in one message.
const chunkBytes = 256 << 10

// Watch hands out the events of a session after a sequence, then live ones and
// text, until the session has ended, ctx ends, handle fails, or the server
// refuses for good. When the connection breaks it comes back after the last event that handle accepted, so
// no durable event is missed and none comes twice.
func (c *Client) Watch(ctx context.Context, session string, after int64, handle func(*apiv1.WatchEventsResponse) error) error {
	for try := 0; ; try++ {
		progress, err := c.watchOnce(ctx, session, &after, handle)
		if progress {
			try = 0
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var stop handlerError
		if errors.As(err, &stop) {
			return stop.err
		}
		if err == nil || !protocol.CodeOf(err).Retryable() {
			return err // a clean end: the session has no more events
		}
		c.lost(err)
		if !op.Sleep(ctx, backoff(try)) {
			return context.Cause(ctx)
		}
	}
}

// handlerError is the caller's own refusal, which ends the watch.
type handlerError struct{ err error }

func (h handlerError) Error() string { return h.err.Error() }

func (c *Client) watchOnce(ctx context.Context, session string, after *int64, handle func(*apiv1.WatchEventsResponse) error) (progress bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Events.WatchEvents(ctx, &apiv1.WatchEventsRequest{SessionId: session, AfterSeq: *after})
	if err != nil {
		return false, err
	}
	defer stream.Close() // cancelled with ctx
	for stream.Receive() {
		m := stream.Msg()
		if e := m.GetEvent(); e != nil {
			if e.GetSeq() <= *after {
				continue
			}
			if e.GetSeq() != *after+1 {
				return progress, protocol.Errorf(protocol.CodeDataLoss,
					"event %d of %s came after event %d: the stream has a gap", e.GetSeq(), session, *after)
			}
		}
		if err := handle(m); err != nil {
			return true, handlerError{err}
		}
		if e := m.GetEvent(); e != nil {
			*after = e.GetSeq()
		}
		progress = true
	}
	return progress, stream.Err()
}

// PutArtifact stores content under its digest and returns that digest. The
// content is read twice: once for the digest, once to be sent.
func (c *Client) PutArtifact(ctx context.Context, kind string, content io.ReadSeeker) (digest string, existed bool, err error) {
	sum := sha256.New()
	size, err := io.Copy(sum, content)
	if err != nil {
		return "", false, err
	}
	if _, err := content.Seek(0, io.SeekStart); err != nil {
		return "", false, err
	}
	digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Artifacts.PutArtifact(ctx)
	if err != nil {
		return "", false, err
	}
	err = stream.Send(&apiv1.PutArtifactRequest{Digest: digest, Size: size, Kind: kind})
	buf := make([]byte, chunkBytes)
	for err == nil {
		n, rerr := io.ReadFull(content, buf)
		if n > 0 {
			err = stream.Send(&apiv1.PutArtifactRequest{Chunk: buf[:n]})
		}
		if rerr == io.EOF || rerr == io.ErrUnexpectedEOF {
			break
		}
		if rerr != nil {
			return "", false, rerr
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return "", false, err
	}
	res, err := stream.CloseAndReceive()
	if err != nil {
		return "", false, err
	}
	return res.GetDigest(), res.GetExisted(), nil
}

// GetArtifact writes the content of digest to w, and fails when what came is
// not that content. The caller must not use w's bytes after an error.
func (c *Client) GetArtifact(ctx context.Context, digest string, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Artifacts.GetArtifact(ctx, &apiv1.GetArtifactRequest{Digest: digest})
	if err != nil {
		return err
	}
	defer stream.Close() // cancelled with ctx
	sum := sha256.New()
	for stream.Receive() {
		if _, err := io.Copy(io.MultiWriter(sum, w), bytes.NewReader(stream.Msg().GetChunk())); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != digest {
		return protocol.Errorf(protocol.CodeDataLoss, "artifact %s arrived as %s: ask again", digest, got)
	}
	return nil
}

package runnerapi

import (
	"context"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/transfer"
)

// PutBlob takes a blob of an attempt whose fence is current, before its first
// byte and again when it is whole. INV-3.
func (s runners) PutBlob(ctx context.Context, stream *connect.ClientStream[runnerv1.PutBlobRequest]) (*runnerv1.PutBlobResponse, error) {
	_, c, err := runnerOf(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, transfer.MaxTime)
	defer cancel()
	first, err := transfer.First(stream)
	if err != nil {
		return nil, err
	}
	attempt, err := protocol.ParseID[protocol.AttemptKind](first.GetAttemptId())
	if err != nil {
		return nil, err
	}
	digest, size, fence := first.GetDigest(), first.GetSize(), protocol.Fence(first.GetFence())
	if err := transfer.CheckDigest(digest); err != nil {
		return nil, err
	}
	if err := transfer.CheckSize(size, s.MaxBlobBytes); err != nil {
		return nil, err
	}
	if err := s.Engine.MayPutBlob(ctx, c, attempt, fence); err != nil {
		return nil, err
	}
	body := transfer.Reader(first.GetChunk(), transfer.Rest(stream, (*runnerv1.PutBlobRequest).GetChunk))
	if err := s.Blobs.Put(ctx, digest, size, body); err != nil {
		return nil, err
	}
	return &runnerv1.PutBlobResponse{}, s.Engine.BlobStored(ctx, c, attempt, fence, digest, size)
}

// GetBlob gives a blob that the attempt's work names.
func (s runners) GetBlob(ctx context.Context, r *runnerv1.GetBlobRequest, stream *connect.ServerStream[runnerv1.GetBlobResponse]) error {
	_, c, err := runnerOf(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, transfer.MaxTime)
	defer cancel()
	attempt, err := protocol.ParseID[protocol.AttemptKind](r.GetAttemptId())
	if err != nil {
		return err
	}
	if err := transfer.CheckDigest(r.GetDigest()); err != nil {
		return err
	}
	if err := s.Engine.MayGetBlob(ctx, c, attempt, protocol.Fence(r.GetFence()), r.GetDigest()); err != nil {
		return err
	}
	blob, size, err := s.Blobs.Open(ctx, r.GetDigest())
	if err != nil {
		return err
	}
	defer blob.Close() // read only
	told := s.Engine.Staged(ctx, c, attempt, r.GetDigest(), size)
	return transfer.Send(ctx, blob, func(chunk []byte) error {
		err := stream.Send(&runnerv1.GetBlobResponse{Chunk: chunk})
		if err == nil {
			told(len(chunk))
		}
		return err
	})
}

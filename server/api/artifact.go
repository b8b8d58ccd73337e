package api

import (
	"context"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/policy"
	"bivouac/server/store"
	"bivouac/server/transfer"
)

type artifacts struct{ Config }

// PutArtifact stores what the caller really sends: a digest alone gives nobody a
// row, so knowing another's digest opens nothing. INV-9.
func (s artifacts) PutArtifact(ctx context.Context, stream *connect.ClientStream[apiv1.PutArtifactRequest]) (*apiv1.PutArtifactResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, transfer.MaxTime)
	defer cancel()
	first, err := transfer.First(stream)
	if err != nil {
		return nil, err
	}
	digest, size, kind := first.GetDigest(), first.GetSize(), first.GetKind()
	if err := s.checkUpload(digest, size, kind); err != nil {
		return nil, err
	}
	body := transfer.Reader(first.GetChunk(), transfer.Rest(stream, (*apiv1.PutArtifactRequest).GetChunk))
	if err := s.Blobs.Put(ctx, digest, size, body); err != nil {
		return nil, err
	}
	existed, err := s.Engine.ArtifactStored(ctx, callerOf(ctx), digest, size)
	return &apiv1.PutArtifactResponse{Digest: digest, Existed: existed}, err
}

func (s artifacts) checkUpload(digest string, size int64, kind string) error {
	if err := transfer.CheckDigest(digest); err != nil {
		return err
	}
	if err := transfer.CheckSize(size, s.MaxBlobBytes); err != nil {
		return err
	}
	if kind != policy.ArtifactWorkspace {
		return protocol.Errorf(protocol.CodeInvalidArgument, "kind %q cannot be uploaded: only %q can", kind, policy.ArtifactWorkspace)
	}
	return nil
}

func (s artifacts) GetArtifact(ctx context.Context, r *apiv1.GetArtifactRequest, stream *connect.ServerStream[apiv1.GetArtifactResponse]) error {
	ctx, cancel := context.WithTimeout(ctx, transfer.MaxTime)
	defer cancel()
	if err := transfer.CheckDigest(r.GetDigest()); err != nil {
		return err
	}
	err := s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		_, err := tx.Artifact(r.GetDigest())
		return err
	})
	if err != nil {
		return err
	}
	blob, _, err := s.Blobs.Open(ctx, r.GetDigest())
	if err != nil {
		return err
	}
	defer blob.Close() // read only
	return transfer.Send(ctx, blob, func(chunk []byte) error {
		return stream.Send(&apiv1.GetArtifactResponse{Chunk: chunk})
	})
}

package supervise

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
	"bivouac/edge/workspace"
)

// prepare makes the workspace that the turn starts from, and the runner's own
// git directory beside it. Earlier patches are part of the base; the patch of a
// checkpoint is part of this turn's change. It counts as a request of the worker,
// which waits for it.
func (a *attempt) prepare(ctx context.Context) error {
	a.arrive()
	defer a.depart()
	if d := a.turn.GetWorkspaceDigest(); d != "" {
		if err := a.stage(ctx, d); err != nil {
			return err
		}
	}
	for _, d := range a.turn.GetPatchDigests() {
		if err := a.patch(ctx, d); err != nil {
			return err
		}
	}
	var err error
	if a.repo, err = workspace.Init(a.cfg.gitDir(), a.cfg.workspaceDir()); err != nil {
		return err
	}
	if err := a.repo.Baseline(ctx); err != nil {
		return err
	}
	if d := a.turn.GetCheckpointPatchDigest(); d != "" {
		return a.patch(ctx, d)
	}
	return nil
}

// makeHome makes the home of sandboxed code anew. It lasts as long as the
// attempt, so that a compiler's cache serves the next call. Sandboxed code may
// have another uid; nobody else passes the folder above.
func (a *attempt) makeHome() error {
	dir := a.cfg.homeDir()
	return errors.Join(workspace.Remove(dir), os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777))
}

// emptyHome leaves the folder itself: where no space is left, none can be made.
func (a *attempt) emptyHome() error {
	dir := a.cfg.homeDir()
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, workspace.Remove(filepath.Join(dir, e.Name())))
	}
	return err
}

// stage unpacks the packed workspace while its digest is computed.
func (a *attempt) stage(ctx context.Context, digest string) error {
	f, err := a.openBlob(digest)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	in := io.TeeReader(f, sum)
	if _, err := workspace.Stage(ctx, in, a.cfg.workspaceDir()); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	return checkSum(digest, sum.Sum(nil))
}

func (a *attempt) patch(ctx context.Context, digest string) error {
	f, err := a.openBlob(digest)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, workspace.MaxPatchBytes+1))
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	if err := checkSum(digest, sum[:]); err != nil {
		return err
	}
	return workspace.Apply(ctx, a.cfg.workspaceDir(), b)
}

func checkSum(digest string, sum []byte) error {
	if got := hex.EncodeToString(sum); got != hexDigest(digest) {
		return protocol.Errorf(protocol.CodeDataLoss, "the blob %s has the digest %s", digest, got)
	}
	return nil
}

func (c Config) blob(digest string) (string, error) {
	d := hexDigest(digest)
	if b, err := hex.DecodeString(d); err != nil || len(b) != sha256.Size {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "%q is no digest", digest)
	}
	return filepath.Join(c.Dir, "blobs", d), nil
}

func (a *attempt) openBlob(digest string) (*os.File, error) {
	name, err := a.cfg.blob(digest)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the blob %s was not brought to the attempt's directory", digest)
	}
	return f, err
}

// putBlob keeps a patch under its digest, on the disk before a record names it.
func (a *attempt) putBlob(b []byte) (digest string, err error) {
	sum := sha256.Sum256(b)
	digest = "sha256:" + hex.EncodeToString(sum[:])
	name, err := a.cfg.blob(digest)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(name); err == nil {
		return digest, nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return "", err
	}
	return digest, durable.Replace(name, b, 0o600)
}

// cleanUp removes what the attempt worked in. Journal and patches stay until the
// daemon, which reads them, removes the directory.
func (s *supervisor) cleanUp(ctx context.Context) error {
	if err := s.clearRoom(); err != nil {
		s.cfg.Log.ErrorContext(ctx, "the attempt's workspace could not be removed; the daemon removes it with the directory", "error", err)
	}
	return nil
}

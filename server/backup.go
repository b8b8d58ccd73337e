package server

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/backup"
	"bivouac/server/engine"
	"bivouac/server/store"
	"bivouac/server/store/blob"
)

// Backup copies the state of a deployment into one file, also while it runs.
type Backup struct {
	Config Config
	// Keyring of the broker, which the copy names and does not hold.
	Keyring string
	File    string
}

// Run writes the file.
func (b Backup) Run(ctx context.Context) (backup.End, error) {
	at, err := b.Config.storeConfig()
	if err != nil {
		return backup.End{}, err
	}
	if err := b.there(at); err != nil {
		return backup.End{}, err
	}
	dir, err := blob.Open(blob.Config{Path: b.Config.blobs()})
	if err != nil {
		return backup.End{}, err
	}
	return backup.Write(ctx, backup.Config{Store: at, Blobs: dir, Product: b.Config.Version, Keyring: b.Keyring, File: b.File})
}

// there refuses to copy out of a place where no server ever was.
func (b Backup) there(at store.Config) error {
	what, path, flag := "database", at.Path, "--data"
	if path == "" {
		what, path, flag = "directory of artifacts", b.Config.blobs(), "--blobs"
	}
	_, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return protocol.Errorf(protocol.CodeFailedPrecondition, "there is nothing to copy: the %s %s is not there; name the server's own with %s DIR", what, path, flag)
	case err != nil:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the %s %s cannot be read: %w; run this as the user of the server, or name another with %s DIR", what, path, err, flag)
	}
	return nil
}

// Restore makes a deployment's state from a copy, or raises one that was brought
// back by other means.
type Restore struct {
	Config Config
	// File to restore from. Empty: the database is there already, an older state of
	// it, and only what it gave out is made void.
	File string
}

// Restored is what came of it.
type Restored struct {
	// Copy is nil without a file.
	Copy *backup.Copy
	// Epoch of every fence from now on.
	Epoch uint32
	// Turns that were open and are ended.
	Turns int
	// Enrolled says that the data directory still has the server's key: it needs no
	// other code.
	Enrolled bool
}

// Run does it while no server runs on the state.
func (r Restore) Run(ctx context.Context) (out Restored, err error) {
	if r.File != "" {
		if out.Copy, err = backup.Open(r.File); err != nil {
			return out, err
		}
	}
	if err := makeDataDir(r.Config.DataDir); err != nil {
		return out, err
	}
	at, err := r.Config.storeConfig()
	if err != nil {
		return out, err
	}
	if at.DSN != "" {
		release, err := store.LockDirectory(r.Config.DataDir)
		if err != nil {
			return out, err
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	st, err := r.open(ctx, at, out.Copy)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	out.Epoch, out.Enrolled = st.Epoch(), enrolled(r.Config.DataDir)
	out.Turns, err = settle(ctx, r.Config, st)
	return out, err
}

func (r Restore) open(ctx context.Context, at store.Config, from *backup.Copy) (*store.Store, error) {
	if from == nil {
		return store.Raise(ctx, at)
	}
	dir, err := blob.Open(blob.Config{Path: r.Config.blobs(), MaxBytes: r.Config.MaxBlobBytes})
	if err != nil {
		return nil, err
	}
	st, err := from.Fill(ctx, at, dir)
	if errors.Is(err, store.ErrFilled) {
		return nil, r.filled(at, err)
	}
	return st, err
}

// filled names the command that makes room without losing anything.
func (r Restore) filled(at store.Config, err error) error {
	if at.Path == "" {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%w; make one: createdb NAME, and name it with --database (and --blobs an empty directory)", err)
	}
	dir := filepath.Clean(r.Config.DataDir)
	return protocol.Errorf(protocol.CodeFailedPrecondition, "%s has a server's state: %w; stop that server, and move its state away: mv %s %s.old", dir, err, dir, dir)
}

// settle ends what a restored store believes to be open; a server that starts does
// it too, for a restore that was cut off.
func settle(ctx context.Context, c Config, st *store.Store) (int, error) {
	rep, err := replica(c.DataDir)
	if err != nil {
		return 0, err
	}
	return engine.New(engine.Config{Store: st, Replica: rep, Elapsed: func() time.Duration { return 0 }, Log: c.Log, Limits: c.Limits}).Rewind(ctx)
}

package server

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bivouac/edge/durable"
	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	"bivouac/server/store"
)

// Names inside the data directory.
const (
	databaseFile = "bivouac.db"
	blobDir      = "blobs"
	replicaFile  = "replica"
	resetKeyFile = "quic-reset.key"
	placeFile    = "place" // in the directory of artifacts
)

// openStore makes the data directory if it is not there and opens the database
// in it. The database locks the directory: a second server is told so.
func openStore(ctx context.Context, c Config) (*store.Store, error) {
	if err := makeDataDir(c.DataDir); err != nil {
		return nil, err
	}
	at, err := c.storeConfig()
	if err != nil {
		return nil, err
	}
	return store.Open(ctx, at)
}

// storeConfig names the database: SQLite in the data directory, or PostgreSQL.
func (c Config) storeConfig() (store.Config, error) {
	s := store.Config{DSN: c.Database, MaxConnections: c.MaxConnections, Log: c.Log}
	if c.DSNFile != "" {
		dsn, err := os.ReadFile(c.DSNFile)
		if err != nil {
			return s, protocol.Errorf(protocol.CodeInvalidArgument, "store.dsn_file: %w", err)
		}
		if s.DSN = strings.TrimSpace(string(dsn)); s.DSN == "" {
			return s, protocol.Errorf(protocol.CodeInvalidArgument, "store.dsn_file %s is empty: write the DSN of the database there", c.DSNFile)
		}
	}
	if s.DSN == "" {
		s.Path = filepath.Join(c.DataDir, databaseFile)
	}
	return s, nil
}

// blobs is the directory of artifacts.
func (c Config) blobs() string {
	if c.BlobDir != "" {
		return c.BlobDir
	}
	return filepath.Join(c.DataDir, blobDir)
}

// placeOf names a directory of artifacts, the same for every server that uses it.
func placeOf(dir string) (string, error) {
	text, err := keep(filepath.Join(dir, placeFile), 0o644, func() []byte { return []byte(rand.Text()) })
	if durable.IsFull(err) {
		return "", protocol.Errorf(protocol.CodeFailedPrecondition, "the directory of artifacts %s cannot be written: %w", dir, durable.Full(dir, err))
	}
	if err != nil {
		return "", protocol.Errorf(protocol.CodeFailedPrecondition, "the directory of artifacts %s cannot be used: %w; give it to this user, or name another with --blobs", dir, err)
	}
	return strings.TrimSpace(string(text)), nil
}

func makeDataDir(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(dir, ".writable-*"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
	}
	if durable.IsFull(err) {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the data directory %s cannot be written: %w", dir, durable.Full(dir, err))
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"the data directory %s cannot be written: %w; make it writable for this user, or choose another one with --data", dir, err)
	}
	return private(dir)
}

// private refuses a data directory, keys and a database that others can touch.
func private(dir string) error {
	paths := []string{dir}
	for _, name := range secretFiles {
		paths = append(paths, filepath.Join(dir, name))
	}
	return filemode.Secret(paths...)
}

// secretFiles of a data directory; the rest of it is no secret, or not for long.
var secretFiles = []string{databaseFile, databaseFile + "-wal", databaseFile + "-shm", "server.key", resetKeyFile}

// replica is the name of this data directory's server in owner rows: the same
// after a restart, so that it takes its own turns up at once.
func replica(dir string) (protocol.ReplicaID, error) {
	path := filepath.Join(dir, replicaFile)
	text, err := keep(path, 0o644, func() []byte {
		return []byte(protocol.NewID[protocol.ReplicaKind](time.Now(), rand.Reader))
	})
	if err != nil {
		return "", err
	}
	id, err := protocol.ParseID[protocol.ReplicaKind](strings.TrimSpace(string(text)))
	if err != nil {
		return "", protocol.Errorf(protocol.CodeDataLoss, "%s is damaged: %w; remove it and start again", path, err)
	}
	return id, nil
}

// resetKey lets clients of an earlier run learn at once that it is gone.
func resetKey(dir string) (*[32]byte, error) {
	text, err := keep(filepath.Join(dir, resetKeyFile), 0o600, func() []byte {
		b := make([]byte, 32)
		rand.Read(b)
		return b
	})
	if err != nil || len(text) != 32 {
		return nil, err // a damaged one costs clients their idle timeout, no more
	}
	return (*[32]byte)(text), nil
}

// keep reads a small file, or makes it.
func keep(path string, mode fs.FileMode, fresh func() []byte) ([]byte, error) {
	text, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return text, err
	}
	text = fresh()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(text)
	return text, errors.Join(err, f.Sync(), f.Close())
}

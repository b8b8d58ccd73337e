package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
	"bivouac/server/store"
)

// format of the file; a reader refuses others.
const format = 1

// Names of entries.
const (
	manifestName = "manifest.json"
	endName      = "end.json"
	tablesDir    = "tables/"
	blobsDir     = "blobs/"
)

// chunk is how many bytes of rows one entry holds, more or less.
const chunk = 4 << 20

// Manifest says what a copy is of.
type Manifest struct {
	Format     int               `json:"format"`
	Product    string            `json:"product"`
	Engine     string            `json:"engine"`
	Epoch      uint32            `json:"store_epoch"`
	At         time.Time         `json:"at"`
	Migrations []store.Migration `json:"migrations"`
	// Keyring names what the copy does not hold and nobody can do without.
	Keyring string `json:"not_included"`
}

// Entry is one entry as it was written.
type Entry struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// End closes a copy.
type End struct {
	Entries []Entry          `json:"entries"`
	Rows    map[string]int64 `json:"rows"`
	Blobs   int              `json:"blobs"`
	// Missing are artifacts that rows name and the directory does not have.
	Missing []string `json:"missing,omitempty"`
}

// Blobs opens an artifact by the hexadecimal digits of its digest.
type Blobs interface {
	Open(ctx context.Context, digest string) (io.ReadCloser, int64, error)
}

// Config of one copy.
type Config struct {
	Store   store.Config
	Blobs   Blobs
	Product string // version of the binary
	// Keyring is where the broker's keyring is, for the reader of the manifest.
	Keyring string
	// File that gets the copy; it must not exist.
	File string
}

// Write makes a copy, beside its place first. Only its owner can read it.
func Write(ctx context.Context, c Config) (End, error) {
	if _, err := os.Stat(c.File); err == nil {
		return End{}, protocol.Errorf(protocol.CodeAlreadyExists, "%s exists already: name another file", c.File)
	}
	snap, err := store.OpenSnapshot(ctx, c.Store)
	if err != nil {
		return End{}, err
	}
	defer snap.Close()
	w := &writer{end: End{Rows: map[string]int64{}}, at: time.Now().UTC().Truncate(time.Second)}
	var copied error
	err = durable.Create(c.File, 0o600, func(out io.Writer) error {
		w.tar = tar.NewWriter(out)
		copied = errors.Join(w.all(ctx, c, snap), w.tar.Close())
		return copied
	})
	switch {
	case copied != nil:
		return End{}, fmt.Errorf("backup: %w", err)
	case err != nil:
		return End{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the backup cannot be written: %w; name a file in a directory that exists and is yours", err)
	}
	return w.end, nil
}

// writer writes one copy.
type writer struct {
	tar     *tar.Writer
	end     End
	at      time.Time
	digests []string // artifacts that rows name
}

func (w *writer) all(ctx context.Context, c Config, snap *store.Snapshot) error {
	manifest, err := json.MarshalIndent(Manifest{
		Format: format, Product: c.Product, Engine: snap.Engine, Epoch: snap.Epoch, At: w.at, Migrations: snap.Migrations,
		Keyring: "the broker's keyring: " + c.Keyring,
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := w.bytes(manifestName, manifest); err != nil {
		return err
	}
	for _, table := range store.Tables {
		if err := w.table(ctx, snap, table); err != nil {
			return err
		}
	}
	slices.Sort(w.digests)
	for _, digest := range slices.Compact(w.digests) {
		if err := w.blob(ctx, c.Blobs, digest); err != nil {
			return err
		}
	}
	end, err := json.Marshal(w.end)
	if err != nil {
		return err
	}
	return w.entry(endName, int64(len(end)), bytes.NewReader(end))
}

func (w *writer) table(ctx context.Context, snap *store.Snapshot, table string) error {
	var rows bytes.Buffer
	n := 0
	flush := func() error {
		n++
		err := w.bytes(fmt.Sprintf("%s%s/%06d.jsonl", tablesDir, table, n), rows.Bytes())
		rows.Reset()
		return err
	}
	err := snap.Rows(ctx, table, func(columns []string, row []any) error {
		if rows.Len() == 0 {
			if err := line(&rows, columns); err != nil {
				return err
			}
		}
		w.end.Rows[table]++
		if table == "artifacts" {
			w.digests = append(w.digests, strings.TrimPrefix(fmt.Sprint(row[slices.Index(columns, "digest")]), "sha256:"))
		}
		if err := line(&rows, encode(row)); err != nil || rows.Len() < chunk {
			return err
		}
		return flush()
	})
	if err == nil && rows.Len() > 0 {
		err = flush()
	}
	return err
}

func line(w *bytes.Buffer, v any) error {
	b, err := json.Marshal(v)
	w.Write(b)
	w.WriteByte('\n')
	return err
}

// encode makes bytes distinct from text.
func encode(row []any) []any {
	out := make([]any, len(row))
	for i, v := range row {
		if b, ok := v.([]byte); ok {
			v = map[string]string{"b": base64.StdEncoding.EncodeToString(b)}
		}
		out[i] = v
	}
	return out
}

// blob copies an artifact. One that is gone is noted: the row stays, and reading it
// says the same as before.
func (w *writer) blob(ctx context.Context, from Blobs, digest string) error {
	r, size, err := from.Open(ctx, digest)
	if protocol.CodeOf(err) == protocol.CodeNotFound {
		w.end.Missing = append(w.end.Missing, digest)
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	w.end.Blobs++
	return w.entry(blobsDir+digest, size, r)
}

func (w *writer) bytes(name string, b []byte) error {
	return w.entry(name, int64(len(b)), bytes.NewReader(b))
}

func (w *writer) entry(name string, size int64, r io.Reader) error {
	if err := w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: w.at, Format: tar.FormatPAX}); err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w.tar, sum), r); err != nil {
		return err
	}
	w.end.Entries = append(w.end.Entries, Entry{name, size, hex.EncodeToString(sum.Sum(nil))})
	return nil
}

package backup

import (
	"archive/tar"
	"bufio"
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
	"strings"

	"bivouac/edge/protocol"
	"bivouac/server/store"
)

// Copy is a file that was read to its end and found whole.
type Copy struct {
	Manifest Manifest
	End      End
	file     string
}

// maxDocument bounds the two documents of a copy; the last names every entry.
const maxDocument = 256 << 20

func damaged(file, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeDataLoss, "the backup %s is not usable: %s; use another one", file, fmt.Sprintf(format, args...))
}

// Open verifies a copy from its first byte to its last; it writes nothing.
func Open(file string) (*Copy, error) {
	c := &Copy{file: file}
	var seen []Entry
	err := c.each(func(h *tar.Header, r io.Reader) error {
		if h.Name == endName || h.Name == manifestName {
			b, err := io.ReadAll(io.LimitReader(r, maxDocument))
			if err != nil {
				return err
			}
			if h.Name == endName {
				return c.judge(b, seen)
			}
			if err := json.Unmarshal(b, &c.Manifest); err != nil {
				return damaged(file, "its manifest cannot be read: %v", err)
			}
			r = bytes.NewReader(b)
		}
		sum := sha256.New()
		n, err := io.Copy(sum, r)
		seen = append(seen, Entry{h.Name, n, hex.EncodeToString(sum.Sum(nil))})
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case c.End.Entries == nil:
		return nil, damaged(file, "its end is missing: it was cut off after %d entries", len(seen))
	case c.Manifest.Format != format:
		return nil, protocol.Errorf(protocol.CodeIncompatible, "the backup %s has format %d, this build reads %d", file, c.Manifest.Format, format)
	}
	return c, nil
}

// judge holds what was read against what was written.
func (c *Copy) judge(end []byte, seen []Entry) error {
	if err := json.Unmarshal(end, &c.End); err != nil {
		return damaged(c.file, "its end cannot be read: %v", err)
	}
	for i, want := range c.End.Entries {
		if i >= len(seen) || seen[i].Name != want.Name {
			return damaged(c.file, "entry %s is missing", want.Name)
		}
		if seen[i] != want {
			return damaged(c.file, "entry %s was altered: it has %d bytes of SHA-256 %.12s, and was written with %d of %.12s",
				want.Name, seen[i].Size, seen[i].SHA256, want.Size, want.SHA256)
		}
	}
	if len(seen) > len(c.End.Entries) {
		return damaged(c.file, "entry %s was added", seen[len(c.End.Entries)].Name)
	}
	return nil
}

// each reads every entry in order.
func (c *Copy) each(do func(h *tar.Header, r io.Reader) error) error {
	f, err := os.Open(c.file)
	if err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the backup cannot be read: %w", err)
	}
	defer f.Close()
	r := tar.NewReader(bufio.NewReaderSize(f, 1<<20))
	for n := 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) && n > 0 {
			return nil
		}
		if err != nil {
			return damaged(c.file, "after %d entries: %v", n, err)
		}
		if err := do(h, r); err != nil {
			var coded *protocol.Error
			if errors.As(err, &coded) {
				return err
			}
			return damaged(c.file, "entry %s: %v", h.Name, err)
		}
	}
}

// Put keeps an artifact under its digest.
type Put interface {
	Put(ctx context.Context, digest string, size int64, r io.Reader) error
}

// Fill makes the store and the artifacts of a copy. Artifacts come first: what the
// store names is there when it is.
func (c *Copy) Fill(ctx context.Context, into store.Config, blobs Put) (*store.Store, error) {
	err := c.each(func(h *tar.Header, r io.Reader) error {
		if digest, ok := strings.CutPrefix(h.Name, blobsDir); ok {
			return blobs.Put(ctx, digest, h.Size, r)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	now, err := c.ownSecond(ctx)
	if err != nil {
		return nil, err
	}
	return store.Restore(ctx, into, store.Copy{Epoch: c.Manifest.Epoch, Migrations: c.Manifest.Migrations, Rows: c.rows}, now)
}

func (c *Copy) rows(put func(table string, columns []string, row []any) error) error {
	return c.each(func(h *tar.Header, r io.Reader) error {
		path, ok := strings.CutPrefix(h.Name, tablesDir)
		if !ok {
			return nil
		}
		table, _, _ := strings.Cut(path, "/")
		d := json.NewDecoder(r)
		d.UseNumber()
		var columns []string
		if err := d.Decode(&columns); err != nil {
			return err
		}
		for d.More() {
			var row []any
			if err := d.Decode(&row); err != nil {
				return err
			}
			if len(row) != len(columns) {
				return damaged(c.file, "a row of %s has %d values for %d columns", table, len(row), len(columns))
			}
			if err := decode(row); err != nil {
				return err
			}
			if err := put(table, columns, row); err != nil {
				return err
			}
		}
		return nil
	})
}

// decode turns numbers and bytes back.
func decode(row []any) (err error) {
	for i, v := range row {
		switch v := v.(type) {
		case json.Number:
			if row[i], err = v.Int64(); err != nil {
				return err
			}
		case map[string]any:
			text, _ := v["b"].(string)
			if row[i], err = base64.StdEncoding.DecodeString(text); err != nil {
				return err
			}
		}
	}
	return nil
}

package device

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"unicode/utf8"

	"bivouac/edge/protocol"
)

// arguments reads strictly: an unknown field is a mistake, not a wish.
func arguments(text string, into any) error {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the arguments are not understood: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return protocol.Errorf(protocol.CodeInvalidArgument, "something follows the arguments")
	}
	return nil
}

type pathArguments struct {
	Path string `json:"path"`
}

type entry struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	Size int64  `json:"size"`
}

type listing struct {
	Entries   []entry `json:"entries"`
	Truncated bool    `json:"truncated"`
}

// list names what is in a folder, sorted; an empty path names the folders.
func (d *Device) list(text string, limit int64) (listing, bool, error) {
	var args pathArguments
	if err := arguments(text, &args); err != nil {
		return listing{}, false, err
	}
	out := listing{Entries: []entry{}}
	if strings.Trim(args.Path, "/.") == "" {
		for _, f := range d.folders {
			out.Entries = append(out.Entries, entry{Name: f.Name, Kind: "folder"})
		}
		return out, false, nil
	}
	p, err := d.locate(List, args.Path)
	if err != nil {
		return listing{}, false, err
	}
	defer p.close()
	if !p.exists() {
		return listing{}, false, protocol.Errorf(protocol.CodeNotFound, "%q does not exist", args.Path)
	}
	if !p.info.IsDir() {
		out.Entries = append(out.Entries, entryOf(p.info))
		return out, false, nil
	}
	infos, truncated, err := d.entries(p)
	if err != nil {
		return listing{}, false, err
	}
	for _, info := range infos {
		e := entryOf(info)
		if limit -= int64(len(e.Name)*2 + 64); limit < 0 {
			truncated = true
			break
		}
		out.Entries = append(out.Entries, e)
	}
	out.Truncated = truncated
	return out, truncated, nil
}

// entries reads a directory up to the bound, without Bivouac's own.
func (d *Device) entries(p *place) ([]fs.FileInfo, bool, error) {
	dir, err := p.dir.Open(".")
	if err != nil {
		return nil, false, err
	}
	defer dir.Close()
	infos, err := dir.Readdir(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	infos = slices.DeleteFunc(infos, d.isPrivate)
	slices.SortFunc(infos, func(a, b fs.FileInfo) int { return strings.Compare(a.Name(), b.Name()) })
	if len(infos) > maxEntries {
		return infos[:maxEntries], true, nil
	}
	return infos, false, nil
}

func entryOf(info fs.FileInfo) entry {
	e := entry{Name: strings.ToValidUTF8(info.Name(), "\uFFFD"), Kind: "other"}
	switch {
	case info.IsDir():
		e.Kind = "folder"
	case info.Mode()&fs.ModeSymlink != 0:
		e.Kind = "link"
	case info.Mode().IsRegular():
		e.Kind, e.Size = "file", info.Size()
	}
	return e
}

type readArguments struct {
	Path     string `json:"path"`
	MaxBytes int64  `json:"max_bytes,omitempty"`
}

type content struct {
	Content   string `json:"content"`
	Encoding  string `json:"encoding"`
	Size      int64  `json:"size"`
	Truncated bool   `json:"truncated"`
	Digest    string `json:"digest,omitempty"`
}

// read gives the beginning of a file: as text when it is text, else in base64.
func (d *Device) read(text string, limit int64) (content, bool, error) {
	var args readArguments
	if err := arguments(text, &args); err != nil {
		return content{}, false, err
	}
	if args.MaxBytes < 0 {
		return content{}, false, protocol.Errorf(protocol.CodeInvalidArgument, "max_bytes must not be negative")
	}
	limit = min(limit, maxRead)
	if args.MaxBytes > 0 {
		limit = min(limit, args.MaxBytes)
	}
	p, err := d.locate(Read, args.Path)
	if err != nil {
		return content{}, false, err
	}
	defer p.close()
	f, info, err := p.open(args.Path)
	if err != nil {
		return content{}, false, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return content{}, false, err
	}
	out := content{Encoding: "utf-8", Size: max(info.Size(), int64(len(b)))}
	if out.Truncated = int64(len(b)) > limit; out.Truncated {
		b = wholeRunes(b[:limit])
	} else {
		out.Digest, out.Size = digestOf(b), int64(len(b))
	}
	if utf8.Valid(b) {
		out.Content = string(b)
	} else {
		out.Encoding, out.Content = "base64", base64.StdEncoding.EncodeToString(b)
	}
	return out, out.Truncated, nil
}

// wholeRunes drops a rune that the cut left incomplete.
func wholeRunes(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if last := b[len(b)-i:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

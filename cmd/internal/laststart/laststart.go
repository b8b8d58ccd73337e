// Package laststart keeps with which flags a program was started last, in its data
// directory, so that its doctor looks where it listens, and the next start needs no
// command line. It owns one file there.
//
// It guarantees that what a person gives wins over what is kept, and that paths count
// from anywhere. It refuses what is not on its caller's list: secrets and codes are in
// files of their own, of which it may keep the name. Test it with go test alone.
package laststart

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
)

// File in the data directory.
const File = "last-start.json"

// Flags that are kept of a program, by what they hold.
type Flags struct {
	// Words are kept as they were given.
	Words []string
	// Paths are kept absolute.
	Paths []string
	// Instead names flags of which one is given instead of the other.
	Instead []string
}

// Start is what was given, by flag; a flag may be given more than once.
type Start map[string][]string

// Given are the flags of the list that a command line has.
func (f Flags) Given(cmd *cobra.Command) (Start, error) {
	s := Start{}
	for _, name := range slices.Concat(f.Words, f.Paths) {
		flag := cmd.Flags().Lookup(name)
		if flag == nil || !flag.Changed {
			continue
		}
		values := []string{flag.Value.String()}
		if many, ok := flag.Value.(interface{ GetSlice() []string }); ok {
			values = many.GetSlice()
		}
		for i, v := range values {
			if v == "" || !slices.Contains(f.Paths, name) {
				continue
			}
			var err error
			if values[i], err = filepath.Abs(v); err != nil {
				return nil, err
			}
		}
		s[name] = values
	}
	return s, nil
}

// Any says that a command line has one of the flags.
func (f Flags) Any(cmd *cobra.Command) bool {
	return slices.ContainsFunc(slices.Concat(f.Words, f.Paths), cmd.Flags().Changed)
}

// Apply gives a command line what was kept and it does not say. It reports whether
// there was anything.
func (f Flags) Apply(s Start, cmd *cobra.Command) (some bool, err error) {
	to := cmd.Flags()
	instead := slices.ContainsFunc(f.Instead, to.Changed)
	for _, name := range slices.Concat(f.Words, f.Paths) {
		flag := to.Lookup(name)
		if flag == nil || flag.Changed || instead && slices.Contains(f.Instead, name) {
			continue
		}
		for _, value := range s[name] {
			if err := to.Set(name, value); err != nil {
				return some, protocol.Errorf(protocol.CodeDataLoss, "%s has a bad --%s: %w; remove the file, and give the flags again", File, name, err)
			}
			some = true
		}
	}
	return some, nil
}

// Read what was kept in a data directory; nil where nothing was.
func Read(dir string) (Start, error) {
	path := filepath.Join(dir, File)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil // who may not look into the directory is told by who opens it
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the addresses of the last start cannot be read: %w", err)
	}
	var s Start
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "%s is damaged: remove it, and give the flags again: rm %s", path, path)
	}
	return s, nil
}

// Keep what was given.
func (s Start) Keep(dir string) error {
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(dir, File), append(b, '\n'), 0o600)
}

// Lost are the flags, as they are typed, that an earlier start had and this one has not.
func (s Start) Lost(earlier Start) (words []string) {
	for _, flag := range slices.Sorted(maps.Keys(earlier)) {
		if len(s[flag]) > 0 {
			continue
		}
		for _, value := range earlier[flag] {
			words = append(words, "--"+flag+" "+value)
		}
	}
	return words
}

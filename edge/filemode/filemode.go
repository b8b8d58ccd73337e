// Package filemode refuses files and folders that other users of a machine can
// touch, with the command that mends it.
//
// It guarantees that nothing which holds a secret is used while others may read
// or change it, and nothing which decides what is allowed while others may change
// it. It refuses to mend anything itself: whoever could read a key may have read
// it, and that is for its owner to know. What is not there is no matter here, and
// neither are systems without these modes. Test it with go test alone.
package filemode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"bivouac/edge/protocol"
)

// The bits of others that are refused.
const (
	touch  fs.FileMode = 0o077
	change fs.FileMode = 0o022
)

// Secret refuses paths that others can read or change: keys, databases, and the
// folders that hold them.
func Secret(paths ...string) error { return refuse(touch, paths) }

// Policy refuses paths that others can change: what says who may do what.
func Policy(paths ...string) error { return refuse(change, paths) }

func refuse(bits fs.FileMode, paths []string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	var all []error
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return protocol.Errorf(protocol.CodeFailedPrecondition, "it cannot be seen who may touch %s: %w", path, err)
		case info.Mode().Perm()&bits != 0:
			all = append(all, &openError{path: path, mode: info.Mode().Perm(), bits: bits, folder: info.IsDir()})
		}
	}
	if len(all) == 0 {
		return nil
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "%w", errors.Join(all...))
}

// openError is one path that is open to others.
type openError struct {
	path   string
	mode   fs.FileMode
	bits   fs.FileMode
	folder bool
}

func (e *openError) Error() string {
	can := "read or change it"
	if e.bits == change {
		can = "change it"
	}
	return fmt.Sprintf("%s has mode %04o: others can %s; mend it with: %s", e.path, e.mode, can, e.Mend())
}

// Mend is the command that closes it.
func (e *openError) Mend() string {
	switch {
	case e.bits == change:
		return "chmod go-w " + e.path
	case e.folder:
		return "chmod 700 " + e.path
	}
	return "chmod 600 " + e.path
}

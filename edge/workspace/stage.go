package workspace

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"bivouac/edge/protocol"
)

// Stage unpacks a packed workspace into dir, which must be empty, with default
// limits. Every file is readable by its owner alone and keeps its executable
// bit. It answers the tree's base after checking its digest.
func Stage(ctx context.Context, r io.Reader, dir string) (Base, error) {
	return StageWithin(ctx, r, dir, DefaultLimits())
}

// StageWithin is Stage with other limits.
func StageWithin(ctx context.Context, r io.Reader, dir string, l Limits) (Base, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Base{}, err
	}
	defer root.Close()
	if left, err := fs.ReadDir(root.FS(), "."); err != nil || len(left) > 0 {
		return Base{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the staging folder is not empty (%d entries, %v)", len(left), err)
	}
	s := staging{root: root, sum: newTreeDigest(), count: tally{limits: l}, made: map[string]bool{}}
	for in := tar.NewReader(r); ; {
		if ctx.Err() != nil {
			return Base{}, context.Cause(ctx)
		}
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return Base{}, protocol.Errorf(protocol.CodeDataLoss, "the packed workspace is damaged: %w", err)
		}
		if err := s.entry(h, in); err != nil {
			return Base{}, err
		}
	}
	return s.finish()
}

// staging is one call of Stage. Links are made last, so that no entry can be
// written through one.
type staging struct {
	root  *os.Root
	sum   *treeDigest
	count tally
	made  map[string]bool
	last  string // names come in order, each once
	base  *Base
	links []*tar.Header
}

func (s *staging) entry(h *tar.Header, r io.Reader) error {
	if s.base != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the packed workspace goes on after its last entry, with %q", h.Name)
	}
	if h.Name == baseName && h.Typeflag == tar.TypeReg {
		s.base = &Base{}
		return json.NewDecoder(io.LimitReader(r, 4096)).Decode(s.base)
	}
	if err := checkName(h.Name); err != nil {
		return err
	}
	if h.Name <= s.last {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the packed workspace is out of order at %q", h.Name)
	}
	s.last = h.Name
	switch h.Typeflag {
	case tar.TypeReg:
		if err := s.count.add(h.Name, h.Size); err != nil {
			return err
		}
		return s.file(h, r)
	case tar.TypeSymlink:
		if err := s.count.add(h.Name, int64(len(h.Linkname))); err != nil {
			return err
		}
		s.sum.link(h.Name, h.Linkname)
		s.links = append(s.links, h)
		return checkLink(h.Name, h.Linkname)
	}
	return protocol.Errorf(protocol.CodePolicyDenied, "the packed workspace holds %q of type %q: only files and links are staged", h.Name, string(h.Typeflag))
}

func (s *staging) file(h *tar.Header, r io.Reader) error {
	if err := s.folder(path.Dir(h.Name)); err != nil {
		return err
	}
	exec := h.Mode&0o100 != 0
	mode := fs.FileMode(0o600)
	if exec {
		mode = 0o700
	}
	f, err := s.root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%q cannot be staged: %w", h.Name, err)
	}
	content := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, content), r)
	if err = errors.Join(err, f.Close()); err != nil {
		return protocol.Errorf(protocol.CodeDataLoss, "%q cannot be staged: %w", h.Name, err)
	}
	s.sum.file(h.Name, exec, content.Sum(nil))
	return nil
}

func (s *staging) folder(name string) error {
	if name == "." || s.made[name] {
		return nil
	}
	if err := s.folder(path.Dir(name)); err != nil {
		return err
	}
	// A few deep names can ask for more folders than there are files.
	if len(s.made) >= s.count.limits.MaxFiles {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the packed workspace has more than %d folders (reached at %.80q)", s.count.limits.MaxFiles, name)
	}
	if err := s.root.Mkdir(name, 0o700); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the folder %q cannot be staged: %w", name, err)
	}
	s.made[name] = true
	return nil
}

func (s *staging) finish() (Base, error) {
	for _, h := range s.links {
		if err := s.folder(path.Dir(h.Name)); err != nil {
			return Base{}, err
		}
		if err := s.root.Symlink(h.Linkname, h.Name); err != nil {
			return Base{}, protocol.Errorf(protocol.CodeInvalidArgument, "the link %q cannot be staged: %w", h.Name, err)
		}
	}
	if s.base == nil {
		return Base{}, protocol.Errorf(protocol.CodeDataLoss, "the packed workspace has no %s: it is cut off or was not made by bivouac", baseName)
	}
	if got := s.sum.text(); got != s.base.Digest {
		return Base{}, protocol.Errorf(protocol.CodeDataLoss, "the packed workspace has the digest %s, not %s as it says", got, strings.ToLower(s.base.Digest))
	}
	return *s.base, nil
}

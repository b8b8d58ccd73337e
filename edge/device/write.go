package device

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

type writeArguments struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

type written struct {
	Size   int64  `json:"size"`
	Digest string `json:"digest"`
}

// write replaces one file by new content, whole or not at all, and only over the
// file that was approved: its digest is compared before, and again right before
// the rename.
func (d *Device) write(w *runnerv1.DeviceWork, permit func() error) (written, error) {
	var args writeArguments
	if err := arguments(w.GetArguments(), &args); err != nil {
		return written{}, err
	}
	if len(args.Content) > maxWrite {
		return written{}, protocol.Errorf(protocol.CodeInvalidArgument, "the content has %d bytes, the limit is %d", len(args.Content), maxWrite)
	}
	p, err := d.locate(Write, args.Path)
	if err != nil {
		return written{}, err
	}
	defer p.close()
	if p.exists() {
		if err := regular(p.info, args.Path); err != nil {
			return written{}, err
		}
	}
	if err := p.unchanged(args.Path, w.GetPreImageDigest()); err != nil {
		return written{}, err
	}
	temp := tempName(w)
	defer p.dir.Remove(temp)
	if err := p.stage(temp, args.Content); err != nil {
		return written{}, err
	}
	if err := errors.Join(p.refresh(), p.unchanged(args.Path, w.GetPreImageDigest()), permit()); err != nil {
		return written{}, err
	}
	if err := p.swap(temp, w.GetPreImageDigest() == ""); err != nil {
		return written{}, err
	}
	return written{Size: int64(len(args.Content)), Digest: digestOf([]byte(args.Content))}, nil
}

// tempName hangs from the action, so that a crash leaves a name that Inspect
// finds and removes (INV-18).
func tempName(w *runnerv1.DeviceWork) string {
	sum := sha256.Sum256([]byte(w.GetActionId()))
	return ".bivouac-" + hex.EncodeToString(sum[:8]) + ".tmp"
}

// stage writes content beside the target and puts it on the disk.
func (p *place) stage(temp, text string) error {
	if err := p.dir.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := p.dir.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, text)
	if p.exists() {
		err = errors.Join(err, f.Chmod(p.info.Mode().Perm()))
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// swap puts the staged file in its place. A file that must be new is linked,
// which never replaces one that appeared meanwhile.
func (p *place) swap(temp string, fresh bool) error {
	if fresh {
		err := p.dir.Link(temp, p.name)
		if errors.Is(err, fs.ErrExist) {
			return changed(p.name)
		}
		if err == nil {
			return p.syncDir()
		}
		// No hard links on this file system.
	}
	if err := p.dir.Rename(temp, p.name); err != nil {
		return err
	}
	return p.syncDir()
}

// syncDir makes the rename last. When it fails the file is in place now and may
// not be after a crash: that is unknown, not failed.
func (p *place) syncDir() error {
	if runtime.GOOS == "windows" {
		return nil
	}
	dir, err := p.dir.Open(".")
	if err == nil {
		err = errors.Join(dir.Sync(), dir.Close())
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeOutcomeUnknown, "the file was written, but its folder could not be put on the disk: %s", reason(err))
	}
	return nil
}

// refresh looks again at what is in the place.
func (p *place) refresh() error {
	info, err := p.dir.Lstat(p.name)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = nil, nil
	}
	p.info = info
	return err
}

// unchanged compares the file with the one that was approved.
func (p *place) unchanged(asked, approved string) error {
	now, _, err := p.digest(asked)
	if err != nil {
		return err
	}
	if !sameDigest(now, approved) {
		return changed(asked)
	}
	return nil
}

func changed(asked string) error {
	return protocol.Errorf(protocol.CodeConflict, "%q is not the file that was approved: it changed since; read it again and ask again", asked)
}

// sameDigest accepts bare hexadecimal digits too.
func sameDigest(a, b string) bool {
	return strings.TrimPrefix(a, "sha256:") == strings.TrimPrefix(b, "sha256:")
}

// digest of the regular file in the place; empty when there is none.
func (p *place) digest(asked string) (digest string, size int64, err error) {
	if !p.exists() {
		return "", 0, nil
	}
	f, info, err := p.open(asked)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	if info.Size() > maxDigest {
		return "", 0, protocol.Errorf(protocol.CodeFailedPrecondition, "%q has %d bytes; up to %d can be replaced", asked, info.Size(), maxDigest)
	}
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, maxDigest+1))
	if err != nil {
		return "", 0, err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), n, nil
}

type fileDigest struct {
	Exists bool   `json:"exists"`
	Size   int64  `json:"size"`
	Digest string `json:"digest"`
}

// digest says what a write would replace.
func (d *Device) digest(text string) (fileDigest, error) {
	var args pathArguments
	if err := arguments(text, &args); err != nil {
		return fileDigest{}, err
	}
	p, err := d.locate(Digest, args.Path)
	if err != nil {
		return fileDigest{}, err
	}
	defer p.close()
	sum, size, err := p.digest(args.Path)
	return fileDigest{Exists: p.exists(), Size: size, Digest: sum}, err
}

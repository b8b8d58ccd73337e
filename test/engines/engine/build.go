//go:build linux

package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"bivouac/edge/lockfile"
	"bivouac/test/process"
)

// build is one program that a module makes, and where it is kept.
type build struct {
	module  string // folder
	pkg     string
	release string
	path    string
}

// build says what would be built. It starts nothing but the go command, to read the
// module file.
func (e Engine) build(ctx context.Context) (build, error) {
	root, err := root()
	if err != nil {
		return build{}, err
	}
	b := build{module: filepath.Join(root, "test", "engines", e.Name), pkg: e.Package}
	list := goCommand(b.module, "list", "-m", "-f", "{{.Version}}", e.Package)
	out, err := process.Output(ctx, list)
	if err != nil {
		return build{}, fmt.Errorf("the release of %s: %w", e.Name, err)
	}
	b.release = strings.TrimSpace(out)
	digest, err := digest(filepath.Join(b.module, "go.mod"), filepath.Join(b.module, "go.sum"))
	if err != nil {
		return build{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return build{}, fmt.Errorf("where %s is kept once it is built: %w", e.Name, err)
	}
	key := strings.Join([]string{e.Name, b.release, runtime.Version(), runtime.GOARCH, digest}, "-")
	b.path = filepath.Join(cache, "bivouac", "engines", key, e.Name)
	return b, nil
}

func (b build) ready() bool {
	_, err := os.Stat(b.path)
	return err == nil
}

// Build makes the program unless it is there, and returns how long that took. Words
// of the go command go to progress.
func (e Engine) Build(ctx context.Context, progress io.Writer) (Program, time.Duration, error) {
	if e.Package == "" {
		return Program{}, 0, fmt.Errorf("%s is %w, and no module builds it: put it on PATH", e.Name, ErrAbsent)
	}
	b, err := e.build(ctx)
	if err != nil {
		return Program{}, 0, err
	}
	started := time.Now()
	if err := os.MkdirAll(filepath.Dir(b.path), 0o755); err != nil {
		return Program{}, 0, err
	}
	lock, err := awaitLock(ctx, b.path+".lock")
	if err != nil {
		return Program{}, 0, err
	}
	defer func() { _ = lock.Release() }() // it ends with this process in any case
	if !b.ready() {
		fmt.Fprintf(progress, "building %s %s: minutes, once\n", e.Name, b.release)
		if err := b.run(ctx, progress); err != nil {
			return Program{}, 0, fmt.Errorf("building %s %s: %w", e.Name, b.release, err)
		}
	}
	p, err := e.program(b.path)
	return p, time.Since(started), err
}

func (b build) run(ctx context.Context, progress io.Writer) error {
	half := b.path + ".half"
	defer os.Remove(half) // after a failure
	cmd := goCommand(b.module, "build", "-trimpath", "-ldflags=-s -w", "-o", half, b.pkg)
	cmd.Stderr = progress
	if err := ended(ctx, cmd); err != nil {
		return err
	}
	return os.Rename(half, b.path)
}

// ended runs cmd and ends it with ctx.
func ended(ctx context.Context, cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}

// goCommand in another module: what is set for this one does not hold there. The
// program needs no C.
func goCommand(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off", "PWD="+dir)
	return cmd
}

// lockAgain is how often one who waits for another's build looks.
const lockAgain = 500 * time.Millisecond

func awaitLock(ctx context.Context, path string) (*lockfile.Lock, error) {
	for {
		lock, err := lockfile.Take(path)
		if !errors.Is(err, lockfile.ErrHeld) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("process %s builds it: %w", lockfile.Holder(path), context.Cause(ctx))
		case <-time.After(lockAgain):
		}
	}
}

// digest of files, in the short form that tells two states of one module apart.
func digest(names ...string) (string, error) {
	h := sha256.New()
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", filepath.Base(name), len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// root of the repository: tests run in their package's folder.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(b, []byte("module bivouac\n")) {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("not within the repository, whose test/engines has the modules of the engines")
		}
		dir = up
	}
}

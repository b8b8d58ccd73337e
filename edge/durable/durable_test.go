package durable

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A helper process stops in the middle of a write, until it is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv("DURABLE_TEST_STOP"); path != "" {
		err := Write(path, 0o600, func(w io.Writer) error {
			w.Write([]byte("half of the ne"))
			os.Stdout.WriteString("half\n")
			_, err := io.Copy(io.Discard, os.Stdin) // killed here
			return err
		})
		panic(err)
	}
	os.Exit(m.Run())
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// whole says what a file of a folder must hold, with nothing beside it.
func whole(t *testing.T, path, content string) {
	t.Helper()
	if got := read(t, path); got != content {
		t.Errorf("it holds %q, want %q", got, content)
	}
	if all := names(t, filepath.Dir(path)); len(all) != 1 {
		t.Errorf("beside it lie %v", all)
	}
}

func TestTheOldOrTheNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	refused := errors.New("refused")
	half := func(w io.Writer) error {
		if _, err := w.Write([]byte("half of the ne")); err != nil {
			return err
		}
		return refused
	}
	for _, c := range []struct {
		what  string
		write func() error
		fails error
		holds string
	}{
		{"the first", func() error { return Replace(path, []byte("one"), 0o600) }, nil, "one"},
		{"another", func() error { return Replace(path, []byte("two"), 0o600) }, nil, "two"},
		{"one that breaks off", func() error { return Write(path, 0o600, half) }, refused, "two"},
		{"one that must be new", func() error { return Create(path, 0o600, bytesOf([]byte("three"))) }, fs.ErrExist, "two"},
		{"streamed", func() error {
			return Write(path, 0o600, func(w io.Writer) error { return errors.Join(bytesOf([]byte("fo"))(w), bytesOf([]byte("ur"))(w)) })
		}, nil, "four"},
		{"not waited for", func() error { return Swap(path, []byte("five"), 0o600) }, nil, "five"},
		{"empty", func() error { return Replace(path, nil, 0o600) }, nil, ""},
	} {
		if err := c.write(); !errors.Is(err, c.fails) {
			t.Errorf("%s: %v, want %v", c.what, err, c.fails)
		}
		whole(t, path, c.holds)
	}
}

func TestWhatMustBeNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	refused := errors.New("refused")
	if err := Create(path, 0o600, func(io.Writer) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("a refused file: %v", err)
	}
	if all := names(t, filepath.Dir(path)); len(all) != 0 {
		t.Errorf("a refused file left %v", all)
	}
	if err := Create(path, 0o600, bytesOf([]byte("whole"))); err != nil {
		t.Errorf("a new file: %v", err)
	}
	whole(t, path, "whole")
}

// A process that dies in the middle leaves the old content under the name.
func TestKilledInTheMiddle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := Replace(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "DURABLE_TEST_STOP="+path)
	in, err := cmd.StdinPipe() // open until it is dead
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err := errors.Join(err, cmd.Process.Kill()); err != nil || line != "half\n" {
		t.Fatalf("%q, %v", line, err)
	}
	cmd.Wait() // it was killed
	if got := read(t, path); got != "old" {
		t.Errorf("after a death in the middle it holds %q", got)
	}
	if len(names(t, filepath.Dir(path))) != 2 {
		t.Error("the process wrote nothing beside it: it died before the middle")
	}
	if err := Replace(path, []byte("new"), 0o600); err != nil || read(t, path) != "new" {
		t.Errorf("afterwards: %v, %q", err, read(t, path))
	}
}

// Readers of a file that is replaced all the time see whole contents only.
func TestReadersSeeNoPart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	contents := [][]byte{bytes.Repeat([]byte("a"), 64<<10), bytes.Repeat([]byte("b"), 32<<10)}
	if err := Swap(path, contents[0], 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		for i := range 200 {
			if err := Swap(path, contents[i%2], 0o600); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		if b := read(t, path); b != string(contents[0]) && b != string(contents[1]) {
			t.Errorf("a part of %d bytes was seen", len(b))
		}
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

// The mode is the one asked for: also over a file that was open, and under any
// umask.
func TestModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no modes there")
	}
	for _, mode := range []fs.FileMode{0o600, 0o644, 0o666, 0o400} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte("open"), 0o666); err != nil {
			t.Fatal(err)
		}
		for _, write := range []func() error{
			func() error { return Replace(path, []byte("x"), mode) },
			func() error { return Swap(path, []byte("x"), mode) },
		} {
			if err := write(); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil || info.Mode().Perm() != mode {
				t.Errorf("mode %v, want %v (%v)", info.Mode(), mode, err)
			}
		}
		err := Write(path, mode, func(w io.Writer) error {
			info, err := w.(*os.File).Stat()
			if err == nil && info.Mode().Perm() != 0o600 {
				err = errors.New("others can read a file that is being written: " + info.Mode().String())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestAFolderThatIsNotThere(t *testing.T) {
	dir := t.TempDir()
	if err := Replace(filepath.Join(dir, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file in no folder: %v", err)
	}
	if err := SyncDir(dir); err != nil {
		t.Errorf("a folder: %v", err)
	}
	if err := SyncDir(filepath.Join(dir, "none")); runtime.GOOS != "windows" && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

func TestStateDir(t *testing.T) {
	t.Setenv("HOME", "/home/ada")
	t.Setenv("USERPROFILE", "/home/ada") // as Windows names it
	for _, c := range []struct{ state, want string }{
		{"/var/state", "/var/state/bivouac/server"},
		{"", "/home/ada/.local/state/bivouac/server"},
	} {
		t.Setenv("XDG_STATE_HOME", c.state)
		if got := filepath.ToSlash(StateDir("bivouac/server", "here")); got != c.want {
			t.Errorf("with XDG_STATE_HOME=%q: %s", c.state, got)
		}
	}
	t.Setenv("HOME", "")
	t.Setenv("USERPROFILE", "")
	if runtime.GOOS == "linux" && StateDir("bivouac/server", "here") != "here" {
		t.Errorf("without a home: %s", StateDir("bivouac/server", "here"))
	}
}

// What a dead process left goes, when it is old enough; what may be under way, what is
// in its place, and what only looks alike stays.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".new-old", ".new-young", ".newer", "file"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, ".new-folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	before := time.Now().Add(-time.Hour)
	for _, name := range []string{".new-old", ".newer", "file", ".new-folder"} {
		if err := os.Chtimes(filepath.Join(dir, name), before, before); err != nil {
			t.Fatal(err)
		}
	}
	if err := Sweep(dir, time.Minute); err != nil {
		t.Fatal(err)
	}
	if left := names(t, dir); !slices.Equal(left, []string{".new-folder", ".new-young", ".newer", "file"}) {
		t.Errorf("left %v", left)
	}
	if err := Sweep(filepath.Join(dir, "absent"), 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

// What a full disk says is what mends it; every other error stays as it was.
func TestFull(t *testing.T) {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		err := Full("/data", &fs.PathError{Op: "write", Path: "/data/x", Err: full})
		if !errors.Is(err, full) || !strings.Contains(err.Error(), "`df -h /data`") {
			t.Errorf("%v is told as %v", full, err)
		}
	}
	if err := Full("/data", fs.ErrPermission); err != fs.ErrPermission {
		t.Errorf("another error became %v", err)
	}
}

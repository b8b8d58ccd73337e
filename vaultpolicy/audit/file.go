package audit

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// look is how often a file is looked at without being told of a change: a mount that
// tells nothing is followed all the same.
const look = time.Second

// File is an audit file that is followed.
type File struct {
	Path   string
	Reader Reader
	Log    *slog.Logger

	looked func() // after the first look, for tests
}

// Run follows the file from its end on until ctx ends. woken is called, from one
// goroutine, for every line that matters. Whatever keeps it from reading is logged
// once and tried again: it is a wake-up, not a condition.
func (f File) Run(ctx context.Context, woken func(Change)) error {
	w := f.watch(ctx)
	defer w.close()
	t := &tail{path: f.Path, split: lines(f.Reader, woken), missed: func() { woken(Change{Matter: Tokens}); woken(Change{Matter: Index}) }}
	defer t.close()
	tick := time.NewTicker(look)
	defer tick.Stop()
	said := ""
	for {
		switch text := describe(t.read()); {
		case text != "" && text != said:
			f.Log.WarnContext(ctx, "the audit file is not followed, polling goes on", "error", text)
			said = text
		case text == "" && said != "":
			f.Log.InfoContext(ctx, "the audit file is followed again", "path", f.Path)
			said = ""
		}
		if f.looked != nil {
			f.looked()
			f.looked = nil
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				waiting = false
			case <-w.errors: // what it hid is seen at the next look
			case e := <-w.events:
				waiting = filepath.Base(e.Name) != filepath.Base(f.Path)
			}
		}
	}
}

func describe(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// watcher of the folder; without channels where the machine has none to give.
type watcher struct {
	*fsnotify.Watcher
	events <-chan fsnotify.Event
	errors <-chan error
}

// watch the folder, because a rotated file is another file.
func (f File) watch(ctx context.Context) watcher {
	w, err := fsnotify.NewBufferedWatcher(64)
	if err == nil {
		if err = w.Add(filepath.Dir(f.Path)); err == nil {
			return watcher{w, w.Events, w.Errors}
		}
		w.Close() // nothing was watched
	}
	f.Log.WarnContext(ctx, "changes of the audit file are not told, it is looked at every second", "error", err)
	return watcher{}
}

func (w watcher) close() {
	if w.Watcher != nil {
		w.Watcher.Close() // it was only read
	}
}

// tail is the file that is open, and how far it was read.
type tail struct {
	path   string
	split  *splitter
	missed func()
	file   *os.File
	at     int64
	began  bool // a file was open before: what is in a new one was not seen
	buffer [64 << 10]byte
}

// read what is new, also in a file that took the place of the open one.
func (t *tail) read() error {
	if t.file == nil {
		if err := t.open(); err != nil {
			return err
		}
	}
	if err := t.drain(); err != nil {
		t.close()
		return err
	}
	now, err := os.Stat(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was moved away, and its writer still writes to it
	}
	if err != nil {
		return err
	}
	mine, err := t.file.Stat()
	if err != nil || !os.SameFile(now, mine) {
		err = errors.Join(t.drain()) // what came before the writer changed over
		t.close()
		t.missed()
		return errors.Join(err, t.open(), t.drain())
	}
	return nil
}

func (t *tail) open() error {
	f, err := os.Open(t.path)
	if err != nil {
		t.began = true // whatever is in it when it comes is new
		return err
	}
	t.file, t.at = f, 0
	t.split.begin()
	if !t.began {
		t.began = true
		t.at, err = f.Seek(0, io.SeekEnd)
	}
	return err
}

func (t *tail) drain() error {
	if t.file == nil {
		return nil
	}
	if info, err := t.file.Stat(); err == nil && info.Size() < t.at { // truncated in place
		t.at = 0
		t.split.begin()
		t.missed()
	}
	for {
		n, err := t.file.ReadAt(t.buffer[:], t.at)
		t.at += int64(n)
		t.split.feed(t.buffer[:n])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *tail) close() {
	if t.file != nil {
		t.file.Close() // only read
		t.file = nil
	}
}

func lines(r Reader, woken func(Change)) *splitter {
	return &splitter{
		line: func(b []byte) {
			if c := r.Read(b); c.Matter != Nothing {
				woken(c)
			}
		},
		missed: func() { woken(Change{Matter: Tokens}); woken(Change{Matter: Index}) },
	}
}

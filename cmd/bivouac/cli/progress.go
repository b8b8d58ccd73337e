package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// progress is one line about something that takes long: rewritten in place on a
// terminal, said now and then elsewhere. What is quick says nothing.
type progress struct {
	w     io.Writer // nil: nothing is said
	tty   bool
	every time.Duration
	last  time.Time
	shown bool
}

// progress of a command; none with --json.
func (a *app) progress() *progress {
	p := &progress{w: bare(a.err), every: 5 * time.Second, last: time.Now()}
	if f, ok := p.w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.tty, p.every = true, 200*time.Millisecond
	}
	if a.json {
		p.w = nil
	}
	return p
}

// say shows a state, unless the last one was just shown.
func (p *progress) say(format string, args ...any) {
	if p.w == nil || time.Since(p.last) < p.every {
		return
	}
	p.last, p.shown = time.Now(), true
	if p.tty {
		fmt.Fprint(p.w, "\r\x1b[K"+plain(fmt.Sprintf(format, args...)))
		return
	}
	fmt.Fprintln(p.w, plain(fmt.Sprintf(format, args...)))
}

// done takes the line back.
func (p *progress) done() {
	if p.tty && p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// counted reports how far a reader has been read. It may be rewound.
type counted struct {
	io.ReadSeeker
	at   int64
	told func(at int64)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadSeeker.Read(p)
	c.at += int64(n)
	c.told(c.at)
	return n, err
}

func (c *counted) Seek(offset int64, whence int) (int64, error) {
	at, err := c.ReadSeeker.Seek(offset, whence)
	c.at = at
	return at, err
}

// size says bytes as people do.
func size(n int64) string {
	switch {
	case n < 10_000:
		return fmt.Sprintf("%d bytes", n)
	case n < 10_000_000:
		return fmt.Sprintf("%d kB", n/1000)
	}
	return fmt.Sprintf("%d MB", n/1_000_000)
}

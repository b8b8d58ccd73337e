package cli

import (
	"bufio"
	"context"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"

	"bivouac/edge/protocol"
)

// input is standard input, read line by line by whoever asks. Waiting for a line
// ends with the context: a read of a terminal cannot be interrupted, so that
// Ctrl-C at a question would do nothing.
type input struct {
	io.Reader
	once  sync.Once
	lines chan string // closed at the end
}

func newInput(r io.Reader) *input { return &input{Reader: r, lines: make(chan string)} }

// line returns the next line without its end, io.EOF after the last one, or why
// the context ended.
func (i *input) line(ctx context.Context) (string, error) {
	i.once.Do(func() { go i.read() }) // a read is long I/O; it ends with the process
	select {
	case <-ctx.Done():
		return "", protocol.Errorf(protocol.CodeCancelled, "interrupted")
	case line, ok := <-i.lines:
		if !ok {
			return "", io.EOF
		}
		return line, nil
	}
}

func (i *input) read() {
	defer close(i.lines)
	for r := bufio.NewReader(i.Reader); ; {
		line, err := r.ReadString('\n')
		if line != "" {
			i.lines <- strings.TrimRight(line, "\r\n")
		}
		if err != nil {
			return
		}
	}
}

// terminal is where a person can be asked.
func (i *input) terminal() (fd int, ok bool) {
	f, ok := i.Reader.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	return int(f.Fd()), true
}

// password reads a line without echo. An interrupted read leaves the terminal
// as it was.
func (i *input) password(ctx context.Context, fd int) (string, error) {
	before, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	type answer struct {
		text []byte
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		b, err := term.ReadPassword(fd)
		done <- answer{b, err}
	}()
	select {
	case <-ctx.Done():
		_ = term.Restore(fd, before)
		return "", protocol.Errorf(protocol.CodeCancelled, "interrupted; nothing was kept")
	case a := <-done:
		return string(a.text), a.err
	}
}

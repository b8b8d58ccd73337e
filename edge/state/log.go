package state

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bivouac/edge/protocol/redact"
)

// Bounds of what is read out of a supervisor's log.
const (
	maxLogTail = 64 << 10
	maxErrors  = 3
	maxError   = 1 << 10
	maxWords   = 256 // of one of the last words
)

// Log is the file that the supervisor writes its log to. It goes with the directory.
func (a Attempt) Log() string { return filepath.Join(a.path, "supervise.log") }

// LastWords are what a supervisor that has ended says of it, each a line, without what
// looks like a secret: the last errors in its log, or what it wrote last.
func (a Attempt) LastWords() (out []string) {
	text, _ := redact.Text(string(a.tail()))
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if _, said, ok := strings.Cut(line, " level="); ok {
			level, said, _ := strings.Cut(said, " ")
			line = said
			if level == "ERROR" {
				out = append(out, said)
			}
		} else if slices.ContainsFunc(fatal, func(p string) bool { return strings.HasPrefix(line, p) }) {
			out = append(out, line)
		}
		last = cmp.Or(line, last)
	}
	if len(out) == 0 && last != "" {
		out = []string{last}
	}
	out = out[max(0, len(out)-maxErrors):]
	for i := range out {
		out[i] = strings.ToValidUTF8(out[i][:min(len(out[i]), maxWords)], "")
	}
	return out
}

// fatal are the beginnings of what a program writes that ends: ours, and of Go.
var fatal = []string{"bivouac-edge: ", "panic: ", "fatal error: ", "runtime: "}

// Errors are the last things that the supervisor's log calls errors, each a line.
func (a Attempt) Errors() (out []string) {
	for line := range bytes.Lines(a.tail()) {
		_, text, ok := strings.Cut(strings.TrimSpace(string(line)), " level=ERROR ")
		if !ok {
			continue
		}
		out = append(out, text[:min(len(text), maxError)])
	}
	return out[max(0, len(out)-maxErrors):]
}

// tail is what can be read of the end of the log.
func (a Attempt) tail() []byte {
	f, err := os.Open(a.Log())
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > maxLogTail {
		_, _ = f.Seek(-maxLogTail, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, maxLogTail))
	return b
}

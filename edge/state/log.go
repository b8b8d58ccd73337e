package state

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Bounds of what is read out of a supervisor's log.
const (
	maxLogTail = 64 << 10
	maxErrors  = 3
	maxError   = 1 << 10
)

// Log is the file that the supervisor writes its log to. It goes with the directory.
func (a Attempt) Log() string { return filepath.Join(a.path, "supervise.log") }

// Errors are the last things that the supervisor's log calls errors, each a line.
func (a Attempt) Errors() (out []string) {
	f, err := os.Open(a.Log())
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > maxLogTail {
		_, _ = f.Seek(-maxLogTail, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, maxLogTail)) // what can be read of it
	for line := range bytes.Lines(b) {
		_, text, ok := strings.Cut(strings.TrimSpace(string(line)), " level=ERROR ")
		if !ok {
			continue
		}
		out = append(out, text[:min(len(text), maxError)])
	}
	return out[max(0, len(out)-maxErrors):]
}

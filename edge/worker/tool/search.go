package tool

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"syscall"
)

// search prints the lines that a regular expression matches, as
// path:line: text. Binary files and .git folders are passed over; links are not
// followed.
func search(root *os.Root, raw json.RawMessage, out io.Writer) error {
	var a struct {
		Pattern string `json:"pattern"`
		Path    string `json:"path"`
	}
	if err := parse(raw, &a); err != nil {
		return err
	}
	re, err := regexp.Compile(a.Pattern)
	if err != nil {
		return invalidError("the pattern is not a regular expression (RE2): " + err.Error())
	}
	name, err := inside(a.Path)
	if err != nil {
		return err
	}
	if _, err := root.Stat(name); err != nil {
		return err
	}
	s := searching{root: root, re: re, out: out}
	err = fs.WalkDir(root.FS(), name, s.visit)
	switch {
	case errors.Is(err, errEnough):
		fmt.Fprintf(out, "[truncated: the first %d matches; narrow the pattern or the path]\n", maxMatches)
	case err != nil:
		return err
	case s.matches == 0:
		fmt.Fprintln(out, "no matches")
	}
	return nil
}

var errEnough = errors.New("enough matches")

type searching struct {
	root    *os.Root
	re      *regexp.Regexp
	out     io.Writer
	matches int
}

func (s *searching) visit(name string, d fs.DirEntry, err error) error {
	switch {
	case err != nil && d != nil && d.IsDir():
		return fs.SkipDir // not readable: pass over
	case err != nil:
		return err
	case d.IsDir() && d.Name() == ".git":
		return fs.SkipDir
	case !d.Type().IsRegular():
		return nil
	}
	f, err := s.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	return s.file(name, f)
}

func (s *searching) file(name string, f io.Reader) error {
	r := bufio.NewReaderSize(f, 64<<10)
	if head, _ := r.Peek(8000); bytes.IndexByte(head, 0) >= 0 {
		return nil
	}
	for line := 1; ; line++ {
		text, err := longLine(r)
		if err != nil && text == nil {
			return nil
		}
		if s.re.Match(text) {
			if s.matches == maxMatches {
				return errEnough
			}
			s.matches++
			shown := strings.ToValidUTF8(string(text[:min(len(text), maxLine)]), "\uFFFD")
			if len(text) > maxLine {
				shown += "…"
			}
			fmt.Fprintf(s.out, "%s:%d: %s\n", name, line, shown)
		}
	}
}

// maxMatched is how much of one line is looked at.
const maxMatched = 1 << 20

// longLine reads a line of any length and keeps a bounded part of it. At the end
// of the file it returns nil.
func longLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if room := maxMatched - len(line); room > 0 {
			line = append(line, part[:min(room, len(part))]...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && len(line) == 0:
			return nil, err
		case line == nil:
			line = []byte{}
		}
		return bytes.TrimRight(line, "\r\n"), nil
	}
}

package mcp

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxEvents of one answer: progress and log messages that are read past.
const maxEvents = 1000

// events reads a stream of server-sent events (WHATWG HTML, 9.2), bounded in bytes
// and in events.
type events struct {
	lines *bufio.Scanner
	count int
}

// readEvents of a body that bounded limits.
func readEvents(in io.Reader, most int) *events {
	e := &events{lines: bufio.NewScanner(in)}
	e.lines.Buffer(nil, most+1)
	e.lines.Split(splitLines())
	return e
}

// next is the data of the next message. A stream that ends in the middle of an
// event has lost that event: io.ErrUnexpectedEOF.
func (e *events) next() ([]byte, error) {
	var data []byte
	named, any := false, false
	for e.lines.Scan() {
		line := e.lines.Bytes()
		if len(line) > 0 {
			any = true
			field, value := cutField(line)
			switch field {
			case "data":
				data = append(append(data, value...), '\n')
			case "event":
				named = len(value) > 0 && string(value) != "message"
			}
			continue
		}
		if !any {
			continue
		}
		if e.count++; e.count > maxEvents {
			return nil, violated("it sent more than %d messages for one request", maxEvents)
		}
		if len(data) > 0 && !named {
			return bytes.TrimSuffix(data, []byte("\n")), nil
		}
		data, named, any = nil, false, false // an event without data, or of another name
	}
	err := e.lines.Err()
	switch {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, violated("one event is too long")
	case err != nil:
		return nil, err
	}
	return nil, io.ErrUnexpectedEOF
}

// cutField of a line: the name before the colon, one space after it is not part of
// the value. A comment has no name.
func cutField(line []byte) (string, []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	return string(name), bytes.TrimPrefix(value, []byte(" "))
}

// splitLines ends a line at CR, LF or both, and never waits for what follows a CR.
func splitLines() bufio.SplitFunc {
	afterCR := false
	return func(data []byte, atEOF bool) (int, []byte, error) {
		skip := 0
		if afterCR && len(data) > 0 {
			if data[0] == '\n' {
				skip = 1
			}
			afterCR = false
		}
		if i := bytes.IndexAny(data[skip:], "\r\n"); i >= 0 {
			afterCR = data[skip+i] == '\r'
			return skip + i + 1, data[skip : skip+i], nil
		}
		if skip > 0 {
			return skip, nil, nil
		}
		if atEOF { // half a line is none
			return len(data), nil, nil
		}
		return 0, nil, nil
	}
}

// bounded reads at most most bytes and then says that it is too much.
type bounded struct {
	in   io.Reader
	most int
	left int
}

func boundedReader(in io.Reader, most int) *bounded { return &bounded{in, most, most} }

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		// One byte more proves that there is more.
		n, err := b.in.Read(p[:min(len(p), 1)])
		if n > 0 {
			return 0, violated("its answer has more than %d bytes: max_answer_kib in broker.hcl", b.most)
		}
		return 0, err
	}
	n, err := b.in.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

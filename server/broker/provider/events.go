package provider

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"
)

// readEvents reads server-sent events until the format's end marker. An event is
// taken as soon as its data is whole, without waiting for the empty line behind
// it: a delta is not held back. The end of the stream without the marker is an
// error of its own.
func readEvents(in io.Reader, r reader, b *builder) error {
	lines := bufio.NewReaderSize(in, 32<<10)
	var pending []byte
	for {
		line, err := readLine(lines)
		if err == nil || (errors.Is(err, io.EOF) && len(line) > 0) {
			done, e := takeLine(line, &pending, r, b)
			if done || e != nil {
				return e
			}
		}
		switch {
		case errors.Is(err, io.EOF) && len(pending) == 0 && r.mayEnd():
			return nil
		case errors.Is(err, io.EOF):
			return errEndedEarly
		case err != nil:
			return err
		}
	}
}

// takeLine adds one line to the event that is being read and hands the event over
// when its data is whole.
func takeLine(line []byte, pending *[]byte, r reader, b *builder) (done bool, err error) {
	if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
		if len(*pending) > 0 {
			*pending = append(*pending, '\n')
		}
		*pending = append(*pending, bytes.TrimSpace(data)...)
		if len(*pending) > maxLine {
			return false, errTooLong
		}
	} else if len(line) > 0 {
		return false, nil // a comment, an event's name, an id
	}
	data := *pending
	switch {
	case len(data) == 0:
		return false, nil
	case json.Valid(data), bytes.Equal(data, []byte("[DONE]")):
	case len(line) > 0:
		return false, nil // it goes on in the next line
	default:
		return false, b.unreadable("an event is no JSON")
	}
	*pending = nil
	return r.event(data)
}

// readLine reads to a line end, bounded.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, errTooLong
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimRight(line, "\r\n"), err
		}
	}
}

// bounded fails beyond its limit instead of pretending an end.
type bounded struct {
	in   io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.in.Read(p)
	b.left -= int64(n)
	return n, err
}

// watch ends a call in which nothing happens for too long.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

func newWatch(ctx context.Context, first time.Duration) *watch {
	w := &watch{}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.expect(first)
	return w
}

// expect something within d.
func (w *watch) expect(d time.Duration) {
	if w.timer != nil {
		w.timer.Stop()
	}
	w.timer = time.AfterFunc(d, func() { w.cancel(&stoodStill{d}) })
}

// pause the watch: it is somebody else's turn.
func (w *watch) pause() { w.timer.Stop() }

func (w *watch) stop() {
	w.timer.Stop()
	w.cancel(context.Canceled)
}

// watched reads under a watch. Only the provider's silence counts: the time that
// the receiver takes does not.
type watched struct {
	in    io.Reader
	watch *watch
	idle  time.Duration
}

func (r *watched) Read(p []byte) (int, error) {
	r.watch.expect(r.idle)
	n, err := r.in.Read(p)
	r.watch.pause()
	return n, err
}

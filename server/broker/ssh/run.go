package ssh

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	wire "golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/server/broker/gateway"
	"bivouac/server/broker/secret"
)

// result is what came of a command.
type result struct {
	out, err text
	exited   bool
	status   uint32
	signal   string
	flooded  bool
	// closed: the host itself ended the channel, so both outputs are whole. A connection
	// that is lost ends them just the same.
	closed bool
}

// text is one of the two outputs: its beginning, and how long it was.
type text struct {
	kept  []byte
	bytes int64
}

// Run asks for the command, once, and reads until it ends. An error is a
// gateway.NotSent, or the outcome is not known: the host may have done it. INV-5.
func (s *Session) Run(ctx context.Context, hidden ...secret.Value) (*gateway.Answer, error) {
	name := s.r.e.cfg.Name
	if err := context.Cause(ctx); err != nil {
		return nil, &gateway.NotSent{Err: err}
	}
	taken, err := s.channel.SendRequest("exec", true, wire.Marshal(struct{ Command string }{s.r.line}))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, protocol.Errorf(protocol.CodeOutcomeUnknown, "the command was sent to destination %s, which had not answered when the call ended: %w", name, context.Cause(ctx))
	case err != nil:
		return nil, protocol.Errorf(protocol.CodeOutcomeUnknown, "the connection to destination %s was cut off after the command was sent", name)
	case !taken:
		return nil, &gateway.NotSent{Err: protocol.Errorf(protocol.CodeFailedPrecondition, "destination %s lets user %s in, and runs no command for it: its operator looks into sshd_config and at the user's shell", name, s.r.e.cfg.User)}
	}
	redactor := secret.NewRedactor(hidden...)
	got := s.read(int64(s.r.maxBytes + redactor.Longest() + 1))
	switch {
	case got.exited || got.signal != "":
		a := s.r.answer(got, redactor)
		switch {
		case got.closed || got.flooded: // all of it, or cut and said so
		case ctx.Err() != nil:
			a.Unread = "the command ended, and something that it left behind kept its output open until the call's time was over"
		default:
			a.Unread = "the command ended, and the connection was lost before the end of its output"
		}
		return a, nil
	case got.flooded:
		return nil, protocol.Errorf(protocol.CodeOutcomeUnknown, "the command on destination %s wrote more than %d MiB and was cut off before it ended", name, s.r.e.cfg.MaxRead>>20)
	case ctx.Err() != nil:
		return nil, protocol.Errorf(protocol.CodeOutcomeUnknown, "the command on destination %s had not ended when the call did, and may go on there: %w", name, context.Cause(ctx))
	}
	return nil, protocol.Errorf(protocol.CodeOutcomeUnknown, "destination %s broke off before the command's exit status", name)
}

// read both outputs and what the host says of the end, until it closes the channel.
func (s *Session) read(keep int64) (got result) {
	_ = s.channel.CloseWrite() // a command has no input; where this fails, so does what follows
	var room atomic.Int64
	room.Store(s.r.e.cfg.MaxRead)
	take := func(from io.Reader, into *text) func() error {
		return func() error {
			buf := make([]byte, 32<<10)
			for {
				n, err := from.Read(buf)
				into.kept = append(into.kept, buf[:min(int64(n), keep-int64(len(into.kept)))]...)
				into.bytes += int64(n)
				if room.Add(-int64(n)) < 0 {
					s.end() // everything else that waits ends by it
					return errFlood
				}
				if err != nil {
					return nil // its end, or the connection's: see stands
				}
			}
		}
	}
	var g errgroup.Group
	g.Go(take(s.channel, &got.out))
	g.Go(take(s.channel.Stderr(), &got.err))
	for ask := range s.asks {
		got.note(ask)
	}
	got.flooded = errors.Is(g.Wait(), errFlood)
	got.closed = !got.flooded && s.stands()
	return got
}

// answersIn bounds the wait for a word of a host that has ended the command already.
const answersIn = 5 * time.Second

// stands reports a connection that outlived the command's channel: then it was the host
// that ended that. One that is lost answers nothing.
func (s *Session) stands() bool {
	defer time.AfterFunc(answersIn, s.end).Stop()
	_, _, err := s.conn.SendRequest("keepalive@openssh.com", true, nil) // a no is an answer
	return err == nil
}

var errFlood = errors.New("too much was written")

// note what the host says of the command's end (RFC 4254, 6.10); everything else that
// it asks for is refused.
func (g *result) note(ask *wire.Request) {
	switch ask.Type {
	case "exit-status":
		if len(ask.Payload) >= 4 {
			g.exited, g.status = true, binary.BigEndian.Uint32(ask.Payload)
		}
	case "exit-signal":
		var m struct {
			Signal     string
			Dumped     bool
			Text, Lang string
		}
		if wire.Unmarshal(ask.Payload, &m) == nil {
			g.signal = "SIG" + strings.Map(func(r rune) rune {
				if r < 'A' || r > 'Z' {
					return -1
				}
				return r
			}, m.Signal[:min(len(m.Signal), 10)])
		}
	}
	if ask.WantReply {
		_ = ask.Reply(false, nil) // the host went
	}
}

// answer is what a model reads of a command that ended: how, and then both outputs.
func (r *Run) answer(got result, redactor *secret.Redactor) *gateway.Answer {
	a := &gateway.Answer{Status: 200, ContentType: "text/plain; charset=utf-8", Bytes: got.out.bytes + got.err.bytes}
	head := "ended by the signal " + got.signal
	if a.Failed = true; got.exited {
		status := int32(got.status) // the same 32 bits
		a.Exit, a.Failed, head = &status, status != 0, fmt.Sprintf("exit status %d", got.status)
	}
	out, cutOut := got.out.clean(redactor, r.maxBytes)
	errs, cutErr := got.err.clean(redactor, r.maxBytes)
	room := max(r.maxBytes-len(head)-len("\n\nstderr:\n"), 0)
	// What a command complains of is short and comes last: it has a quarter for certain.
	forErr := min(len(errs), max(room/4, room-len(out)))
	forOut := min(len(out), room-forErr)
	a.Truncated = cutOut || cutErr || forOut < len(out) || forErr < len(errs)
	body := head
	if out != "" {
		body += "\n" + strings.ToValidUTF8(out[:forOut], "")
	}
	if errs != "" {
		body += "\n\nstderr:\n" + strings.ToValidUTF8(errs[:forErr], "")
	}
	a.Body = []byte(body[:min(len(body), r.maxBytes)])
	a.Digest = canonical.Digest(a.Body)
	return a
}

// clean text, without what must not come back, in whatever escapes. The end of what was
// not kept whole is left out where it may begin a value. INV-17.
func (t text) clean(redactor *secret.Redactor, limit int) (out string, cut bool) {
	if out = redactor.Text(string(t.kept)); int64(len(t.kept)) == t.bytes {
		out = redactor.Decoded(out)
	} else {
		out = redactor.Cut(out)
	}
	out = strings.ToValidUTF8(out, "\uFFFD")
	return out, int64(len(t.kept)) < t.bytes || len(out) > limit
}

package ledger

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"strconv"

	"golang.org/x/mod/sumdb/tlog"

	"bivouac/edge/protocol"
)

// maxLine of an export: an event's stored bytes hold no payload.
const maxLine = 4 << 20

// Event of an export, as it was stored.
type Event struct {
	Session protocol.SessionID
	Seq     int64
	Stored  []byte
	Hash    []byte
}

// Summary of an export that holds.
type Summary struct {
	Head     Head
	Segments int64
	Events   int64
	Sessions int
}

// Verify reads an export and proves it against the fingerprint of the trusted
// root; each, if not nil, is given every event whose hash fits, in order. The
// first thing that does not hold is data_loss, with its line, and with the
// session and the event where it is about one.
func Verify(r io.Reader, fingerprint string, each func(Event) error) (Summary, error) {
	v := &verifier{sum: sha256.New(), link: sha256.New(), fingerprint: fingerprint, each: each, ends: map[protocol.SessionID]end{}}
	in := bufio.NewReaderSize(r, 256<<10)
	for {
		line, err := v.next(in)
		if err == io.EOF {
			return v.out, v.finish()
		}
		if err == nil {
			err = v.take(line)
		}
		if err != nil {
			return v.out, protocol.Errorf(protocol.CodeDataLoss, "line %d: %w", v.line, err)
		}
	}
}

// end is where a session's last segment ended.
type end struct {
	seq  int64
	hash []byte
}

type verifier struct {
	fingerprint string
	each        func(Event) error
	out         Summary
	line        int
	sum, link   hash.Hash
	ended       bool
	long        []byte // a line longer than the reader's buffer

	segment *Segment
	seq     int64  // of the last event of the segment
	hash    []byte // its hash
	buffer  [2][]byte
	ends    map[protocol.SessionID]end
}

// next line without its end.
func (v *verifier) next(in *bufio.Reader) ([]byte, error) {
	v.long = v.long[:0]
	for {
		part, err := in.ReadSlice('\n')
		switch {
		case err == bufio.ErrBufferFull && len(v.long)+len(part) <= maxLine:
			v.long = append(v.long, part...)
			continue
		case err == bufio.ErrBufferFull:
			v.line++
			return nil, broken("it is longer than %d bytes", maxLine)
		case err == io.EOF && len(part)+len(v.long) == 0:
			return nil, io.EOF
		case err != nil && err != io.EOF:
			return nil, err
		}
		v.line++
		if err == io.EOF {
			return nil, broken("the file ends in the middle of it")
		}
		if len(v.long) > 0 {
			part = append(v.long, part...)
		}
		return part[:len(part)-1], nil
	}
}

func broken(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeDataLoss, format, args...)
}

func (v *verifier) take(line []byte) error {
	if v.ended {
		return broken("there is more after the end")
	}
	word, rest, _ := bytes.Cut(line, []byte{' '})
	if v.line <= 2 || string(word) != wordEnd {
		v.sum.Write(line)
		v.sum.Write([]byte{'\n'})
	}
	switch {
	case v.line == 1 && string(line) == firstLine:
		return nil
	case v.line == 1:
		return broken("it is no export of a ledger: %q is missing", firstLine)
	case v.line == 2 && string(word) == wordHead:
		head, err := OpenHead(string(rest), v.fingerprint)
		v.out.Head = head
		return err
	case v.line == 2:
		return broken("the head is missing")
	case string(word) == wordSegment:
		return v.takeSegment(rest)
	case string(word) == wordEvent:
		return v.takeEvent(rest)
	case string(word) == wordEnd:
		return v.takeEnd(rest)
	}
	return broken("%.20q is no word of an export", word)
}

// takeSegment proves one segment against the head, and that it goes on where the
// last one of its session ended.
func (v *verifier) takeSegment(rest []byte) error {
	if err := v.closeSegment(); err != nil {
		return err
	}
	words := bytes.Split(rest, []byte{' '})
	if len(words) < 2 {
		return broken("a segment has a number and a leaf")
	}
	n, err := strconv.ParseInt(string(words[0]), 10, 64)
	if err != nil {
		return broken("the segment's number cannot be read")
	}
	leaf, err := decoded(words[1])
	if err != nil {
		return err
	}
	proof := make(tlog.RecordProof, 0, len(words)-2)
	for _, w := range words[2:] {
		h, err := decoded(w)
		if err != nil || len(h) != len(Hash{}) {
			return broken("the proof of segment %d cannot be read", n)
		}
		proof = append(proof, Hash(h))
	}
	if tlog.CheckRecord(proof, v.out.Head.Size, v.out.Head.Root, n, tlog.RecordHash(leaf)) != nil {
		return broken("segment %d is not in the signed ledger: it, its proof or the head was altered", n)
	}
	s, err := ParseSegment(leaf)
	if err != nil {
		return err
	}
	before := v.ends[s.Session]
	if s.From != before.seq+1 {
		return broken("segment %d of session %s begins at event %d, and event %d comes next: a segment is missing or out of order", n, s.Session, s.From, before.seq+1)
	}
	v.segment, v.seq, v.hash = &s, before.seq, append(v.hash[:0], before.hash...)
	v.out.Segments++
	return nil
}

// takeEvent proves one event by the hash of the one before.
func (v *verifier) takeEvent(rest []byte) error {
	if v.segment == nil {
		return broken("an event outside of a segment")
	}
	seq := v.seq + 1
	name := func() string { return fmt.Sprintf("event %d of session %s", seq, v.segment.Session) }
	stored64, hash64, two := bytes.Cut(rest, []byte{' '})
	if !two || seq > v.segment.To {
		return broken("after event %d of session %s comes something that the segment does not have", v.seq, v.segment.Session)
	}
	stored, err := v.decode(0, stored64)
	if err != nil {
		return broken("%s was altered: %w", name(), err)
	}
	want, err := v.decode(1, hash64)
	if err != nil {
		return broken("%s was altered: its hash: %w", name(), err)
	}
	v.link.Reset()
	v.link.Write(v.hash)
	v.link.Write(stored)
	v.hash = v.link.Sum(v.hash[:0])
	if !bytes.Equal(v.hash, want) {
		return broken("%s was altered: its bytes and its hash do not fit", name())
	}
	v.seq = seq
	v.out.Events++
	if v.each == nil {
		return nil
	}
	return v.each(Event{Session: v.segment.Session, Seq: seq, Stored: stored, Hash: want})
}

// closeSegment holds the last event's hash against what was sealed.
func (v *verifier) closeSegment() error {
	s := v.segment
	if s == nil {
		return nil
	}
	switch {
	case v.seq != s.To:
		return broken("events %d to %d of session %s are missing", v.seq+1, s.To, s.Session)
	case !bytes.Equal(v.hash, s.Hash):
		return broken("events %d to %d of session %s are not those that were sealed", s.From, s.To, s.Session)
	}
	v.ends[s.Session] = end{s.To, bytes.Clone(v.hash)}
	v.out.Sessions = len(v.ends)
	v.segment = nil
	return nil
}

func (v *verifier) takeEnd(rest []byte) error {
	if err := v.closeSegment(); err != nil {
		return err
	}
	if string(rest) != hex.EncodeToString(v.sum.Sum(nil)) {
		return broken("the digest at the end does not fit: some byte of the file was altered that proves nothing else")
	}
	v.ended = true
	return nil
}

func (v *verifier) finish() error {
	if !v.ended {
		return broken("line %d: the file ends before its last line: a tail was cut off", v.line+1)
	}
	return nil
}

// strict refuses another spelling of the same bytes.
var strict = base64.StdEncoding.Strict()

func decoded(word []byte) ([]byte, error) {
	out := make([]byte, strict.DecodedLen(len(word)))
	n, err := strict.Decode(out, word)
	if err != nil {
		return nil, broken("%.20q is no base64", word)
	}
	return out[:n], nil
}

// decode is decoded into a buffer that is used again.
func (v *verifier) decode(i int, word []byte) ([]byte, error) {
	if need := strict.DecodedLen(len(word)); cap(v.buffer[i]) < need {
		v.buffer[i] = make([]byte, need)
	}
	n, err := strict.Decode(v.buffer[i][:cap(v.buffer[i])], word)
	if err != nil {
		return nil, broken("it is no base64")
	}
	return v.buffer[i][:n], nil
}

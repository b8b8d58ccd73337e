package calllog

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"time"

	"bivouac/edge/protocol"
)

// State of an action.
type State string

const (
	// Sent: logged, perhaps sent, no answer seen.
	Sent State = "sent"
	// Answered: the upstream's whole answer was received.
	Answered State = "answered"
	// Barred: it was absent when its evidence was asked, and is never sent since.
	Barred State = "barred"
)

// Entry is what is known of one action.
type Entry struct {
	State      State
	ArgsDigest string
	// KeyDigest of the idempotency key; empty without one.
	KeyDigest  string
	Status     int
	BodyDigest string
	// Failed: the answer itself says no, whatever its status.
	Failed bool
	At     time.Time
}

// kinds of lines.
const (
	kindHead     = "head" // first line: the log covers everything since At
	kindSent     = "sent"
	kindAnswered = "answered"
	kindUnsent   = "unsent" // the connection was never made: as if not logged
	kindBarred   = "barred" // its absence was told: it must stay absent
)

// record is one line: eight hexadecimal digits of CRC-32C, a space, JSON.
type record struct {
	Kind   string            `json:"k"`
	Action protocol.ActionID `json:"a,omitempty"`
	Args   string            `json:"d,omitempty"`
	Key    string            `json:"i,omitempty"`
	Status int               `json:"s,omitempty"`
	Body   string            `json:"b,omitempty"`
	Failed bool              `json:"f,omitempty"`
	AtUs   int64             `json:"t"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (r record) line() ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return frame(body), nil
}

func frame(body []byte) []byte {
	var sum [4]byte
	c := crc32.Checksum(body, castagnoli)
	sum[0], sum[1], sum[2], sum[3] = byte(c>>24), byte(c>>16), byte(c>>8), byte(c)
	line := hex.AppendEncode(nil, sum[:])
	line = append(append(line, ' '), body...)
	return append(line, '\n')
}

func parse(line []byte) (r record, ok bool) {
	if len(line) < 10 || line[8] != ' ' {
		return r, false
	}
	body := bytes.TrimSuffix(line[9:], []byte("\n"))
	if !bytes.Equal(frame(body), line) {
		return r, false
	}
	return r, json.Unmarshal(body, &r) == nil
}

// read returns the records up to the first line that is not whole, how many
// bytes they take, and whether anything whole follows the damage: a torn end is
// what a crash leaves, damage in the middle is not.
func read(src io.Reader) (records []record, good int64, middle bool, err error) {
	in := bufio.NewReaderSize(src, 64<<10)
	damaged := false
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			r, ok := parse(line)
			switch {
			case !ok:
				damaged = true
			case damaged:
				middle = true
			default:
				records = append(records, r)
				good += int64(len(line))
			}
		}
		if errors.Is(err, io.EOF) {
			return records, good, middle, nil
		}
		if err != nil {
			return nil, 0, false, err
		}
	}
}

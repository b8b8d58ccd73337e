package ledger

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"bivouac/edge/protocol"
)

// Segment is a run of a session's events and the chain's hash at its end.
type Segment struct {
	Session protocol.SessionID
	// From and To are sequence numbers, both included. The first begins at 1.
	From, To int64
	// Hash of the event To.
	Hash []byte
}

// kind begins the text of every segment, and says how the rest is read.
const kind = "bivouac-segment-v1"

// Text is the leaf: one line, in one form only.
func (s Segment) Text() []byte {
	return fmt.Appendf(nil, "%s %s %d %d %s", kind, s.Session, s.From, s.To, hex.EncodeToString(s.Hash))
}

// ParseSegment reads a leaf; another form of the same is refused.
func ParseSegment(text []byte) (Segment, error) {
	var s Segment
	parts := strings.Split(string(text), " ")
	bad := func(why string) (Segment, error) {
		return Segment{}, protocol.Errorf(protocol.CodeDataLoss, "it is no segment of the ledger: %s", why)
	}
	if len(parts) != 5 || parts[0] != kind {
		return bad("it does not begin with " + kind + " and four words")
	}
	id, err := protocol.ParseID[protocol.SessionKind](parts[1])
	if err != nil {
		return bad(err.Error())
	}
	s.Session = id
	var e1, e2, e3 error
	s.From, e1 = strconv.ParseInt(parts[2], 10, 64)
	s.To, e2 = strconv.ParseInt(parts[3], 10, 64)
	s.Hash, e3 = hex.DecodeString(parts[4])
	if e1 != nil || e2 != nil || e3 != nil || s.From < 1 || s.To < s.From || len(s.Hash) != 32 {
		return bad("its numbers or its hash cannot be")
	}
	if string(s.Text()) != string(text) {
		return bad("it is not in its one form")
	}
	return s, nil
}

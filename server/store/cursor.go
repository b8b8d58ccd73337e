package store

import (
	"encoding/base64"
	"math"
	"strconv"
	"strings"

	"bivouac/edge/protocol"
)

// position is where a page ended: the sort key of its last row.
type position struct {
	at int64
	n  int64
	id string
}

// String is the cursor that clients send back; its form is not theirs to read.
func (p position) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.at, 36) + "." + strconv.FormatInt(p.n, 36) + "." + p.id))
}

// readCursor reads a cursor; the empty one is before the newest row.
func readCursor(s string) (position, error) {
	if s == "" {
		return position{at: math.MaxInt64, n: math.MaxInt64, id: "~"}, nil
	}
	bad := protocol.Errorf(protocol.CodeInvalidArgument, "the page cursor is not one that this server gave out: begin again without it")
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return position{}, bad
	}
	parts := strings.SplitN(string(b), ".", 3)
	if len(parts) != 3 {
		return position{}, bad
	}
	p := position{id: parts[2]}
	if p.at, err = strconv.ParseInt(parts[0], 36, 64); err != nil {
		return position{}, bad
	}
	if p.n, err = strconv.ParseInt(parts[1], 36, 64); err != nil {
		return position{}, bad
	}
	return p, nil
}

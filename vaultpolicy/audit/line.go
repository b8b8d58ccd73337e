package audit

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// Matter is what a line may have changed.
type Matter int

// What a line may have changed.
const (
	Nothing Matter = iota
	// Tokens: a token, an entity or a policy.
	Tokens
	// Index: an entry in the index of grants.
	Index
)

// Reader tells lines that matter from others.
type Reader struct {
	// Grants is the mount of the index.
	Grants string
}

// entry is what is read of a line. Values in it are hashed by the server; paths and
// operations are not.
type entry struct {
	Type    string `json:"type"`
	Error   string `json:"error"`
	Request struct {
		Operation string `json:"operation"`
		Path      string `json:"path"`
	} `json:"request"`
}

// marks of the paths below, to pass most lines by without reading them.
var marks = [][]byte{[]byte("auth/token/re"), []byte("leases/"), []byte("identity/"), []byte("sys/polic"), []byte("sys/revoke"), []byte("token/roles")}

// Matter of one line, without its end. A request matters when it was answered:
// before that, nothing has changed. What cannot be read matters to nobody.
func (r Reader) Matter(line []byte) Matter {
	if !r.marked(line) {
		return Nothing
	}
	// The device may be told to write something before each line.
	at := bytes.IndexByte(line, '{')
	if at < 0 {
		return Nothing
	}
	var e entry
	if json.Unmarshal(line[at:], &e) != nil || e.Type != "response" {
		return Nothing
	}
	return r.of(e.Request.Operation, e.Request.Path)
}

func (r Reader) marked(line []byte) bool {
	return slices.ContainsFunc(marks, func(m []byte) bool { return bytes.Contains(line, m) }) ||
		r.Grants != "" && bytes.Contains(line, []byte(r.Grants))
}

func (r Reader) of(operation, path string) Matter {
	if operation == "read" || operation == "list" || operation == "help" {
		return Nothing
	}
	under := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(path, p) })
	}
	switch {
	case r.Grants != "" && under(r.Grants+"/"):
		// A new entry ends nothing.
		if operation == "create" && under(r.Grants+"/data/") {
			return Nothing
		}
		return Index
	// A token that revokes itself is not a grant's: nobody else has those.
	case path == "auth/token/revoke-self":
		return Nothing
	case under("auth/token/revoke", "auth/token/roles/", "sys/leases/revoke", "sys/revoke", "identity/", "sys/policies/", "sys/policy/"):
		return Tokens
	}
	return Nothing
}

// MaxLine bounds a line; a longer one counts as one that was missed.
const MaxLine = 1 << 20

// splitter makes lines of pieces.
type splitter struct {
	part     []byte
	overlong bool
	line     func([]byte)
	missed   func()
}

func (s *splitter) feed(piece []byte) {
	for len(piece) > 0 {
		end := bytes.IndexByte(piece, '\n')
		head := piece
		if end >= 0 {
			head = piece[:end]
		}
		if s.overlong = s.overlong || len(s.part)+len(head) > MaxLine; s.overlong {
			s.part = s.part[:0]
		} else {
			s.part = append(s.part, head...)
		}
		if end < 0 {
			return
		}
		if s.overlong {
			s.missed()
		} else {
			s.line(s.part)
		}
		s.part, s.overlong, piece = s.part[:0], false, piece[end+1:]
	}
}

// begin forgets a line that will not be finished.
func (s *splitter) begin() { s.part, s.overlong = s.part[:0], false }

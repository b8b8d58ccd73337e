package audit

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"bivouac/edge/protocol"
)

// Matter is what a line is about.
type Matter int

// What a line is about.
const (
	Nothing Matter = iota
	// Tokens: a token, an entity or a policy may have changed.
	Tokens
	// Index: an entry in the index of grants may have changed.
	Index
	// Asked: somebody looked a token up by its accessor. It changed nothing, and says
	// how the server writes that accessor down.
	Asked
)

// Change is what a line says. What it does not name may be anything of its Matter.
type Change struct {
	Matter Matter
	// Accessor that was revoked or looked up, as the device writes it: most hash it.
	Accessor string
	// Request is the server's id of a look-up, which its answer has too.
	Request string
	// Entity that was written or deleted.
	Entity string
	// Grant whose entry was.
	Grant protocol.GrantID
}

// Reader tells lines that matter from others.
type Reader struct {
	// Grants is the mount of the index.
	Grants string
}

// entry is what is read of a line. Values in it are hashed by the server; paths,
// operations and the ids of requests are not.
type entry struct {
	Type    string `json:"type"`
	Error   string `json:"error"`
	Request struct {
		ID        string          `json:"id"`
		Operation string          `json:"operation"`
		Path      string          `json:"path"`
		Data      json.RawMessage `json:"data"`
	} `json:"request"`
}

// accessor that the request named.
func (e entry) accessor() string {
	var data struct {
		Accessor string `json:"accessor"`
	}
	if json.Unmarshal(e.Request.Data, &data) != nil {
		return "" // whoever asked sent something else
	}
	return data.Accessor
}

// marks of the paths below, to pass most lines by without reading them.
var marks = [][]byte{[]byte("auth/token/re"), []byte(lookUp), []byte("leases/"), []byte("identity/"), []byte("sys/polic"), []byte("sys/revoke"), []byte("token/roles")}

const (
	lookUp   = "auth/token/lookup-accessor"
	revoke   = "auth/token/revoke-accessor"
	entityID = "identity/entity/id/"
)

// Read one line, without its end. A request matters when it was answered: before
// that, nothing has changed. What cannot be read matters to nobody.
func (r Reader) Read(line []byte) Change {
	if !r.marked(line) {
		return Change{}
	}
	// The device may be told to write something before each line.
	at := bytes.IndexByte(line, '{')
	if at < 0 {
		return Change{}
	}
	var e entry
	if json.Unmarshal(line[at:], &e) != nil || e.Type != "response" {
		return Change{}
	}
	return r.of(e)
}

func (r Reader) marked(line []byte) bool {
	return slices.ContainsFunc(marks, func(m []byte) bool { return bytes.Contains(line, m) }) ||
		r.Grants != "" && bytes.Contains(line, []byte(r.Grants))
}

func (r Reader) of(e entry) Change {
	operation, path := e.Request.Operation, e.Request.Path
	if operation == "read" || operation == "list" || operation == "help" {
		return Change{}
	}
	under := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(path, p) })
	}
	switch {
	case r.Grants != "" && under(r.Grants+"/"):
		// A new entry ends nothing.
		if operation == "create" && under(r.Grants+"/data/") {
			return Change{}
		}
		return Change{Matter: Index, Grant: r.grant(path)}
	// A token that revokes itself is not a grant's: nobody else has those.
	case path == "auth/token/revoke-self":
		return Change{}
	case path == lookUp:
		return Change{Matter: Asked, Accessor: e.accessor(), Request: e.Request.ID}
	case path == revoke:
		return Change{Matter: Tokens, Accessor: e.accessor()}
	case under(entityID):
		return Change{Matter: Tokens, Entity: strings.TrimPrefix(path, entityID)}
	case under("auth/token/revoke", "auth/token/roles/", "sys/leases/revoke", "sys/revoke", "identity/", "sys/policies/", "sys/policy/"):
		return Change{Matter: Tokens}
	}
	return Change{}
}

// grant of an entry's path, <mount>/<what>/<person>/<grant>; empty where it is none.
func (r Reader) grant(path string) protocol.GrantID {
	parts := strings.Split(strings.TrimPrefix(path, r.Grants+"/"), "/")
	if len(parts) != 3 {
		return ""
	}
	id, err := protocol.ParseID[protocol.GrantKind](parts[2])
	if err != nil {
		return ""
	}
	return id
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

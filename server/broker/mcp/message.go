package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// maxDepth of a message: what is read must be put into canonical form as well.
const maxDepth = 60

// violation is an answer that the protocol does not allow.
type violation struct{ text string }

func (v *violation) Error() string { return v.text }

func violated(format string, args ...any) error { return &violation{fmt.Sprintf(format, args...)} }

// message is one JSON-RPC 2.0 message of a server.
type message struct {
	// id as it was written; nil for a notification.
	id     json.RawMessage
	method string // of a request or a notification
	params json.RawMessage
	result json.RawMessage // of an answer, or
	fault  *wireFault
}

// wireFault is JSON-RPC's error object.
type wireFault struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (m message) asks() bool     { return m.method != "" && m.id != nil }
func (m message) notifies() bool { return m.method != "" && m.id == nil }

// answers reports the answer to a request of ours: our ids are integers, and an
// answer repeats them exactly.
func (m message) answers(id int64) bool {
	return m.method == "" && string(m.id) == strconv.FormatInt(id, 10)
}

// parseMessage reads one message and holds it to its form. What JSON readers
// understand differently is refused: batches, keys that stand twice, text after the
// end, invalid UTF-8.
func parseMessage(src []byte) (message, error) {
	src = bytes.TrimSpace(src)
	switch {
	case !utf8.Valid(src):
		return message{}, violated("a message is not valid UTF-8")
	case len(src) > 0 && src[0] == '[':
		return message{}, violated("it sent a JSON-RPC batch")
	case len(src) == 0 || src[0] != '{':
		return message{}, violated("a message is no JSON object")
	}
	if err := shallow(src, maxDepth); err != nil {
		return message{}, err
	}
	parts, err := members(src)
	if err != nil {
		return message{}, err
	}
	return parts.message()
}

// known members of a message.
var known = map[string]bool{"jsonrpc": true, "id": true, "method": true, "params": true, "result": true, "error": true}

type memberMap map[string]json.RawMessage

func members(src []byte) (memberMap, error) {
	dec := json.NewDecoder(bytes.NewReader(src))
	if _, err := dec.Token(); err != nil {
		return nil, violated("a message is no JSON")
	}
	out := memberMap{}
	for dec.More() {
		key, err := dec.Token()
		name, ok := key.(string)
		var value json.RawMessage
		if err != nil || !ok || dec.Decode(&value) != nil {
			return nil, violated("a message is no JSON")
		}
		if _, twice := out[name]; twice {
			return nil, violated("a message has a member twice")
		}
		if known[name] {
			out[name] = value
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, violated("a message is no JSON")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, violated("text follows a message")
	}
	return out, nil
}

// message of the members: exactly one of its three kinds.
func (p memberMap) message() (m message, err error) {
	if string(p["jsonrpc"]) != `"2.0"` {
		return m, violated("a message is not of JSON-RPC 2.0")
	}
	if m.id, err = idOf(p["id"]); err != nil {
		return m, err
	}
	if raw, ok := p["method"]; ok {
		if json.Unmarshal(raw, &m.method) != nil || m.method == "" || p["result"] != nil || p["error"] != nil {
			return m, violated("a request has no method, or is an answer at the same time")
		}
		if m.id == nil && p["id"] != nil {
			return m, violated("a request has the id null")
		}
		m.params = p["params"]
		return m, nil
	}
	m.result = p["result"]
	if raw, ok := p["error"]; ok && string(raw) != "null" {
		if json.Unmarshal(raw, &m.fault) != nil || m.fault == nil {
			return m, violated("an error is no error object")
		}
	}
	if (m.result == nil) == (m.fault == nil) {
		return m, violated("an answer has no result and no error, or both")
	}
	return m, nil
}

// idOf is an id in the form in which it is compared: a string or an integer.
func idOf(raw json.RawMessage) (json.RawMessage, error) {
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	if len(raw) > 256 {
		return nil, violated("an id has %d bytes", len(raw))
	}
	if raw[0] == '"' {
		return raw, nil
	}
	if _, err := strconv.ParseInt(string(raw), 10, 64); err != nil {
		return nil, violated("an id is neither a string nor an integer")
	}
	return raw, nil
}

// shallow refuses nesting that readers would follow by recursion. The text need
// not be JSON.
func shallow(src []byte, most int) error {
	depth, quoted, escaped := 0, false, false
	for _, c := range src {
		switch {
		case escaped:
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > most {
				return violated("it is nested deeper than %d", most)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

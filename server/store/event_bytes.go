package store

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"strconv"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/server/session"
)

// Tombstone is what is read in the place of an erased payload.
const Tombstone = "[erased]"

// canonicalEvent is the form of an event that is hashed and kept: RFC 8785 JSON
// of one flat object. Empty members are left out; at is microseconds since 1970
// UTC. The payload itself is not in it, only its salted digest. INV-8.
func canonicalEvent(e session.Stored, payloadDigest string) []byte {
	b := make([]byte, 0, 256)
	b = append(b, '{')
	member := func(name, value string) {
		if value != "" {
			b = canonicalMember(b, name)
			b = canonical.AppendString(b, value)
		}
	}
	// The order of RFC 8785, which is that of the names.
	member("action", e.Action.String())
	member("approval", e.Approval.String())
	b = strconv.AppendInt(canonicalMember(b, "at"), micros(e.At), 10)
	member("attempt", e.Attempt.String())
	if len(e.Data) > 0 {
		b = canonical.AppendMap(canonicalMember(b, "data"), e.Data)
	}
	member("payload_digest", payloadDigest)
	b = strconv.AppendInt(canonicalMember(b, "seq"), e.Seq, 10)
	member("session", e.Session.String())
	member("turn", e.Turn.String())
	member("type", string(e.Type))
	return append(b, '}')
}

func canonicalMember(b []byte, name string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return append(canonical.AppendString(b, name), ':')
}

// cleanEvent mends text before it is hashed, as every column does.
func cleanEvent(e session.Event) session.Event {
	e.Payload = cleanText(e.Payload)
	if len(e.Data) == 0 {
		e.Data = nil
		return e
	}
	clean := make(map[string]string, len(e.Data))
	for k, v := range e.Data {
		clean[cleanText(k)] = cleanText(v)
	}
	e.Data = clean
	return e
}

// payloadDigest hides short payloads behind a salt that is erased with them.
func payloadDigest(salt []byte, payload string) string {
	h := sha256.New()
	h.Write(salt)
	io.WriteString(h, payload)
	return hex.EncodeToString(h.Sum(nil))
}

// storedEvent is canonicalEvent read back.
type storedEvent struct {
	Action        protocol.ActionID   `json:"action"`
	Approval      protocol.ApprovalID `json:"approval"`
	At            int64               `json:"at"`
	Attempt       protocol.AttemptID  `json:"attempt"`
	Data          map[string]string   `json:"data"`
	PayloadDigest string              `json:"payload_digest"`
	Seq           int64               `json:"seq"`
	Session       protocol.SessionID  `json:"session"`
	Turn          protocol.TurnID     `json:"turn"`
	Type          session.EventType   `json:"type"`
}

func readEventBytes(b []byte) (storedEvent, error) {
	var s storedEvent
	if err := json.Unmarshal(b, &s); err != nil {
		return s, &protocol.Error{Code: protocol.CodeDataLoss, Message: "an event's stored bytes cannot be read", Err: err}
	}
	return s, nil
}

// decodeEvent fills an event from its bytes: there is no second copy to differ.
func decodeEvent(e session.Stored) (session.Stored, error) {
	s, err := readEventBytes(e.Bytes)
	if err != nil {
		return e, err
	}
	e.Event = session.Event{Type: s.Type, Turn: s.Turn, Action: s.Action, Attempt: s.Attempt, Approval: s.Approval, Data: s.Data}
	e.Session, e.Seq, e.At = s.Session, s.Seq, time.UnixMicro(s.At).UTC()
	return e, nil
}

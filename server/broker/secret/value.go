// Package secret holds values that nobody may see: credentials and keys in the
// memory of the broker.
//
// It guarantees that a Value prints as REDACTED whatever prints it, and that a
// Redactor removes a value from text in every encoding it knows, also where the text comes
// in pieces (INV-17). It refuses values that are too short to be recognised. Test it with go test alone.
package secret

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"

	"bivouac/edge/protocol"
)

// MinBytes is the shortest value that can be removed from text without removing
// half of the text with it.
const MinBytes = 8

// MaxBytes bounds a value: credentials travel in headers.
const MaxBytes = 16 << 10

const redacted = "REDACTED"

// Value is a secret text. The zero value is "no secret".
type Value struct{ text string }

// New wraps text. It refuses what cannot be redacted or sent in a header.
func New(text string) (Value, error) {
	switch {
	case len(text) < MinBytes:
		return Value{}, protocol.Errorf(protocol.CodeInvalidArgument,
			"the value has %d bytes: a credential needs at least %d, or it could not be removed from answers", len(text), MinBytes)
	case len(text) > MaxBytes:
		return Value{}, protocol.Errorf(protocol.CodeInvalidArgument, "the value has %d bytes: at most %d are possible", len(text), MaxBytes)
	}
	for _, r := range text {
		if r < ' ' || r == 0x7f {
			return Value{}, protocol.Errorf(protocol.CodeInvalidArgument,
				"the value contains a control character (perhaps a line end): store exactly what the header needs")
		}
	}
	return Value{text: text}, nil
}

// Reveal is the one way to the text. Its callers are few on purpose.
func (v Value) Reveal() string { return v.text }

// IsZero reports "no secret".
func (v Value) IsZero() bool { return v.text == "" }

// Equal compares in constant time.
func (v Value) Equal(text string) bool {
	return subtle.ConstantTimeCompare([]byte(v.text), []byte(text)) == 1
}

func (v Value) String() string { return redacted }

// GoString covers %#v.
func (v Value) GoString() string { return redacted }

// Format covers every other verb.
func (v Value) Format(s fmt.State, _ rune) { io.WriteString(s, redacted) } // like fmt itself

// MarshalText covers JSON, HCL and flags.
func (v Value) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue covers slog.
func (v Value) LogValue() slog.Value { return slog.StringValue(redacted) }

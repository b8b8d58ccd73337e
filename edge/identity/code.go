package identity

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"io"
	"strings"

	"bivouac/edge/protocol"
)

// Kinds of enrolment codes.
const (
	CodeJoin   = "join" // a runner joins a server
	CodeServer = "srv"  // a server joins a broker
)

// Code is a single-use invitation: <kind>_<26 base32 characters>_<64 hex
// digits>. The last part is the fingerprint of the root that the bearer must
// meet, so that it needs neither names nor a clock to know the right server.
type Code struct {
	Kind        string
	Fingerprint string
	secret      string
}

var codeText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewCode draws the 128 random bits of a code.
func NewCode(kind, fingerprint string, random io.Reader) (Code, error) {
	var b [16]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return Code{}, err
	}
	return Code{Kind: kind, Fingerprint: fingerprint, secret: codeText.EncodeToString(b[:])}, nil
}

// Reveal is the whole code: shown once, to the person who carries it over.
func (c Code) Reveal() string { return c.Kind + "_" + c.secret + "_" + c.Fingerprint }

// String hides the secret.
func (c Code) String() string { return c.Kind + "_REDACTED_" + c.Fingerprint }

// Hash is the only form of a code that is stored.
func (c Code) Hash() []byte {
	sum := sha256.Sum256([]byte(c.secret))
	return sum[:]
}

// ParseCode reads a code as a person gives it, and tells a mistyped one apart
// before anything is sent.
func ParseCode(kind, text string) (Code, error) {
	text = strings.ToLower(strings.TrimSpace(text))
	wrong := func(what string) error {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the code is mistyped: %s; copy it again as a whole, or ask for a new one", what)
	}
	parts := strings.Split(text, "_")
	if len(parts) != 3 {
		return Code{}, wrong("it must have three parts with an underscore between them")
	}
	if parts[0] != kind {
		return Code{}, wrong("it must begin with " + kind + "_")
	}
	if b, err := codeText.DecodeString(parts[1]); err != nil || len(b) != 16 || codeText.EncodeToString(b) != parts[1] {
		return Code{}, wrong("its middle part must be 26 letters and digits 2 to 7")
	}
	if b, err := hex.DecodeString(parts[2]); err != nil || len(b) != sha256.Size {
		return Code{}, wrong("its last part must be 64 hexadecimal digits")
	}
	return Code{Kind: kind, Fingerprint: parts[2], secret: parts[1]}, nil
}

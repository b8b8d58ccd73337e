package api

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"bivouac/edge/protocol"
)

// Token is a principal's bearer. It prints as REDACTED; Reveal is for the one
// answer, or the one file, that hands it over.
type Token struct{ text string }

// tokenPrefix tells a token of ours apart in logs and secret scanners.
const tokenPrefix = "bvt_"

// tokenDigits are the 52 letters and digits of 256 random bits.
const tokenDigits = 52

var tokenText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewToken draws one.
func NewToken() Token {
	var b [32]byte
	rand.Read(b[:])
	return Token{tokenPrefix + tokenText.EncodeToString(b[:])}
}

// ParseToken reads one back from a file.
func ParseToken(text string) (Token, error) {
	if !wellFormed(text) {
		return Token{}, protocol.Errorf(protocol.CodeInvalidArgument, "a token is bvt_ and 52 letters and digits")
	}
	return Token{text}, nil
}

// Reveal is the token itself.
func (t Token) Reveal() string { return t.text }

func (t Token) String() string { return tokenPrefix + "REDACTED" }

// GoString keeps %#v from printing it.
func (t Token) GoString() string { return t.String() }

// Hash is the only form that is stored.
func (t Token) Hash() []byte { return hashToken(t.text) }

func hashToken(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

// wellFormed reports a text that could be a token.
func wellFormed(text string) bool {
	digits, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok || len(digits) != tokenDigits {
		return false
	}
	_, err := tokenText.DecodeString(digits)
	return err == nil
}

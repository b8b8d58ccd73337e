// Package canonical turns untrusted JSON into its one canonical form (RFC 8785)
// and digests it. Server, broker and runner use this package alone, so that what
// was approved, what is dispatched and what is executed have the same bytes.
//
// It guarantees that two documents with different meaning have different
// digests: duplicate keys, trailing text, invalid UTF-8, lone surrogates and
// integers that a double cannot hold are refused, not repaired. It refuses
// nesting beyond MaxDepth.
package canonical

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"bivouac/edge/protocol"

	"github.com/gowebpki/jcs"
)

const (
	// MaxDepth is the deepest nesting of objects and arrays.
	MaxDepth = 64
	// maxInteger is the largest integer up to which every one has its own
	// double: 2^53.
	maxInteger = 1 << 53
	// fromExponent is where the canonical form begins to have an exponent.
	fromExponent = 1e21
)

// Canonical returns the RFC 8785 form of one JSON document, or an
// invalid_argument that says what is wrong with it, and where.
func Canonical(src []byte) ([]byte, error) {
	if !utf8.Valid(src) {
		return nil, refuse("it is not valid UTF-8")
	}
	if err := check(src); err != nil {
		return nil, err
	}
	out, err := jcs.Transform(src)
	if err != nil {
		return nil, refuse("%s", err)
	}
	return out, nil
}

// Digest of canonical bytes: "sha256:" and 64 hexadecimal digits.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// IsDigest reports text that Digest could have made.
func IsDigest(s string) bool { return digestForm.MatchString(s) }

// Marshal is the canonical form of a Go value.
func Marshal(v any) ([]byte, error) {
	src, err := json.Marshal(v)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "value is not JSON: %w", err)
	}
	return Canonical(src)
}

func refuse(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidArgument, "JSON is refused: "+format, args...)
}

// check reads the document token by token. encoding/json alone would accept
// duplicate keys, round large integers and replace what is not Unicode.
func check(src []byte) error {
	dec := json.NewDecoder(bytes.NewReader(src))
	dec.UseNumber()
	if err := value(dec, 0); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return refuse("text follows the document at byte %d", dec.InputOffset())
	}
	return nil
}

// value reads one value at a depth: the number of containers around it.
func value(dec *json.Decoder, depth int) error {
	tok, err := dec.Token()
	if err != nil {
		return syntax(dec, err)
	}
	switch t := tok.(type) {
	case json.Number:
		return number(t.String())
	case json.Delim:
		if depth == MaxDepth {
			return refuse("it is nested deeper than %d at byte %d", MaxDepth, dec.InputOffset())
		}
		if t == '{' {
			return object(dec, depth+1)
		}
		return array(dec, depth+1)
	}
	return nil
}

func array(dec *json.Decoder, depth int) error {
	for dec.More() {
		if err := value(dec, depth); err != nil {
			return err
		}
	}
	return closing(dec)
}

func object(dec *json.Decoder, depth int) error {
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return syntax(dec, err)
		}
		key, ok := tok.(string)
		if !ok {
			return refuse("a key is not a string at byte %d", dec.InputOffset())
		}
		if seen[key] {
			return refuse("the key %s occurs twice in one object", clip(key))
		}
		seen[key] = true
		if err := value(dec, depth); err != nil {
			return err
		}
	}
	return closing(dec)
}

func closing(dec *json.Decoder) error {
	if _, err := dec.Token(); err != nil {
		return syntax(dec, err)
	}
	return nil
}

// number refuses what a double cannot hold: an integer beyond 2^53 would share
// its canonical form, and so its digest, with a neighbour. The same goes for any
// number whose canonical form is such an integer, however it is written, so that
// canonical bytes are always accepted again. From 1e21 on the canonical form has
// an exponent and says itself that it is no exact integer.
func number(s string) error {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return refuse("the number %s is out of range", clip(s))
	}
	plain := !strings.ContainsAny(s, ".eE")
	if size := math.Abs(f); size >= maxInteger && (plain || size < fromExponent) && !exactly(s) {
		return refuse("the integer %s is beyond 2^53: write it as a string", clip(s))
	}
	return nil
}

// exactly accepts ±2^53 itself; a neighbour that rounds to it is refused.
func exactly(s string) bool { return strings.TrimPrefix(s, "-") == "9007199254740992" }

func syntax(dec *json.Decoder, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return refuse("it ends too early, at byte %d", dec.InputOffset())
	}
	return refuse("%s at byte %d", err, dec.InputOffset())
}

func clip(s string) string {
	const most = 40
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}

package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// note adds a line to the trace. Identifiers in it are replaced by short ones in
// order of their appearance, so that a trace can be read, and compared.
func (s *Sim) note(format string, args ...any) {
	for i, a := range args {
		switch v := a.(type) {
		case error:
			args[i] = s.shorten(v.Error())
		case fmt.Stringer:
			args[i] = s.shorten(v.String())
		case string:
			args[i] = s.shorten(v)
		}
	}
	line := fmt.Sprintf("%11.6f  ", s.now().Seconds()) + fmt.Sprintf(format, args...)
	s.trace = append(s.trace, line)
}

// Digest of the whole trace: equal for two plays of one seed.
func (r *Result) Digest() string {
	h := sha256.New()
	for _, line := range r.Trace {
		fmt.Fprintln(h, line)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// idLength is that of a ULID.
const idLength = 26

// shorten replaces every identifier in a text: "trn_01jdv3…" becomes "trn1".
func (s *Sim) shorten(text string) string {
	if len(text) < idLength {
		return text
	}
	var b strings.Builder
	for {
		at := strings.IndexByte(text, '_')
		if at < 3 || len(text) < at+1+idLength || !isID(text[at-3:at], text[at+1:at+1+idLength]) {
			if at < 0 {
				b.WriteString(text)
				return b.String()
			}
			b.WriteString(text[:at+1])
			text = text[at+1:]
			continue
		}
		b.WriteString(text[:at-3])
		b.WriteString(s.name(text[at-3:at], text[at-3:at+1+idLength]))
		text = text[at+1+idLength:]
	}
}

func isID(kind, ulid string) bool {
	for _, c := range kind {
		if c < 'a' || c > 'z' {
			return false
		}
	}
	for _, c := range ulid {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

func (s *Sim) name(kind, id string) string {
	short, known := s.names[id]
	if !known {
		s.counts[kind]++
		short = kind + strconv.Itoa(s.counts[kind])
		s.names[id] = short
	}
	return short
}

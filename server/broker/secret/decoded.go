package secret

import (
	"encoding/json"
	"strings"
)

// deepest string of JSON in a string of JSON that is read.
const deepest = 4

// Decoded is a text, redacted before, whose strings of JSON, names and values, hold no
// known value when they are read, nor do strings of JSON in those: one that is written
// with escapes is no text that Text knows, and whoever puts documents together writes
// strings anew. INV-17.
func (r *Redactor) Decoded(text string) string { return r.decoded(text, deepest) }

func (r *Redactor) decoded(text string, depth int) string {
	if depth == 0 || !strings.Contains(text, `\`) {
		return text
	}
	var out strings.Builder
	rest := text
	for {
		from := strings.IndexByte(rest, '"')
		if from < 0 {
			break
		}
		end, escaped := from+1, false
		for end < len(rest) && rest[end] != '"' {
			if rest[end] == '\\' {
				end, escaped = end+1, true
			}
			end++
		}
		if end >= len(rest) { // no end: what follows is no string
			break
		}
		literal := rest[from : end+1]
		if escaped {
			literal = r.literal(literal, depth)
		}
		out.WriteString(rest[:from])
		out.WriteString(literal)
		rest = rest[end+1:]
	}
	out.WriteString(rest)
	return out.String()
}

// literal is a string of JSON as it was written, or, where it holds a known value,
// written anew without.
func (r *Redactor) literal(literal string, depth int) string {
	var s string
	if json.Unmarshal([]byte(literal), &s) != nil {
		return literal
	}
	clean := r.decoded(r.Text(s), depth-1)
	if clean == s {
		return literal
	}
	return `"` + quoted(clean, false) + `"`
}

// Package redact takes what looks like a secret out of text that goes on: into a
// conversation, into an event, into a log.
//
// It guarantees that what it made it never changes again. It is the second line: the
// exact values that Bivouac holds are removed where they are used, and a secret in a
// form that nobody listed passes. It refuses to read, keep or report what it found.
// It is pure. Test it with go test alone.
package redact

import (
	"regexp"
	"sync"
)

// pattern is one form of secret that has no business in a conversation. The
// broker removes the exact values that it injected; these patterns are the
// second line, for secrets that Bivouac never held.
type pattern struct {
	name string
	form *regexp.Regexp
	// keep is the replacement with what may stay, such as a header's name.
	keep string
}

// patterns are compiled when the first text comes: most processes that hold this package
// have ended by then, and all wait for what is made at their start.
var patterns = sync.OnceValue(func() []pattern {
	return []pattern{
		{"private key", regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z)`), ""},
		{"age identity", regexp.MustCompile(`AGE-SECRET-KEY-1[0-9A-Z]{50,}`), ""},
		{"bearer token", regexp.MustCompile(`(?i)\b((?:proxy-)?authorization["']?\s*[:=]\s*["']?(?:bearer|basic|token)\s+)[A-Za-z0-9._~+/=-]{8,}`), "$1"},
		{"bearer token", regexp.MustCompile(`\b(Bearer\s+)[A-Za-z0-9._~+/=-]{20,}`), "$1"},
		{"api key", regexp.MustCompile(`(?i)\b(x-api-key["']?\s*[:=]\s*["']?)[A-Za-z0-9._~+/=-]{8,}`), "$1"},
		{"aws key", regexp.MustCompile(`\b(?:AKIA|ASIA)[0-9A-Z]{16}\b`), ""},
		{"aws key", regexp.MustCompile(`(?i)(aws_?secret_?(?:access_?)?key["']?\s*[:=]\s*["']?)[A-Za-z0-9/+=]{40}`), "$1"},
		{"github token", regexp.MustCompile(`\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})\b`), ""},
		{"gitlab token", regexp.MustCompile(`\bglpat-[A-Za-z0-9_-]{20,}`), ""},
		{"slack token", regexp.MustCompile(`\bxox[abeoprs]-[A-Za-z0-9-]{10,}`), ""},
		{"google key", regexp.MustCompile(`\bAIza[0-9A-Za-z_-]{35}`), ""},
		{"provider key", regexp.MustCompile(`\bsk-[A-Za-z0-9_-]{20,}`), ""},
		{"payment key", regexp.MustCompile(`\b[rs]k_live_[A-Za-z0-9]{16,}`), ""},
		{"vault token", regexp.MustCompile(`\bhv[sbr]\.[A-Za-z0-9_-]{20,}`), ""},
		{"web token", regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`), ""},
		{"password", regexp.MustCompile(`\b([a-z][a-z0-9+.-]*://[^\s/:@"']{1,128}:)[^\s/@"']{1,256}(@)`), "${1}\x00${2}"},
	}
})

// Text replaces what looks like a secret and says how many it replaced. It is
// pure and idempotent; it never makes text that it would redact again.
func Text(text string) (string, int) {
	count := 0
	for _, p := range patterns() {
		mark := "[redacted: " + p.name + "]"
		text = p.form.ReplaceAllStringFunc(text, func(hit string) string {
			replaced := p.form.ReplaceAllString(hit, template(p.keep, mark))
			if replaced != hit {
				count++
			}
			return replaced
		})
	}
	return text, count
}

// template puts the mark where the secret was: at the end, or at the zero byte.
func template(keep, mark string) string {
	for i := range len(keep) {
		if keep[i] == 0 {
			return keep[:i] + mark + keep[i+1:]
		}
	}
	return keep + mark
}

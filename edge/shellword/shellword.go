// Package shellword writes a path as a shell takes it, for the commands that are
// printed to be typed. It guarantees that what is typed is that one word, and leaves a
// word as it is that needs nothing. Pure; test it with go test alone.
package shellword

import "strings"

// Quote is s as one word.
func Quote(s string) string {
	if strings.ContainsAny(s, " \t\n'\"\\$`&;|<>()*?[]#~!{}") {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

package shellword

import "testing"

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"/srv/notes":    "/srv/notes",
		"/srv/my notes": "'/srv/my notes'",
		"it's":          `'it'\''s'`,
		"$HOME":         "'$HOME'",
		"a;b":           "'a;b'",
		"a{b,c}":        "'a{b,c}'",
		"a\nb":          "'a\nb'",
	} {
		if got := Quote(in); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

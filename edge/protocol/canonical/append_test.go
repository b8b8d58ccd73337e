package canonical

import "testing"

// What is appended is what Marshal makes of the same object.
func FuzzAppendMap(f *testing.F) {
	f.Add("prompt", "What is in my notes?", "workspace", "")
	f.Add("<&>\u2028", "\x00\x1f\b\f\n\r\t\"\\/", "\x7f", "é")
	f.Add("\U0001F600", "after an emoji in UTF-8, before it in UTF-16", "\uFB33", "x")
	f.Add("", "\xff broken", "a", "\xed\xa0\x80")
	f.Fuzz(func(t *testing.T, name, value, other, last string) {
		if _, err := Marshal(map[string]string{name: ""}); err != nil {
			t.Skip(err)
		}
		m := map[string]string{name: value, other: last, "middle": "m"}
		want, err := Marshal(m)
		if err != nil {
			t.Skip(err) // two names that are broken in different ways become one
		}
		if got := string(AppendMap(nil, m)); got != string(want) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

func TestAppendMapOfNothing(t *testing.T) {
	if got := string(AppendMap([]byte("x"), nil)); got != "x{}" {
		t.Errorf("got %s", got)
	}
}

package secret

import (
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"testing"
)

// streamed is what goes out of a text that comes in pieces.
func streamed(r *Redactor, pieces ...string) string {
	var out strings.Builder
	s := r.Stream()
	for _, p := range pieces {
		out.WriteString(s.Next(p))
	}
	out.WriteString(s.Rest())
	return out.String()
}

// INV-17: however a value is written and wherever the text is divided, none of it goes
// out, and everything around it does.
func TestStreamKnowsEveryScript(t *testing.T) {
	r := known(t, token)
	for name, script := range scripts {
		written := script(token)
		text := "before " + written + " after"
		want := r.Decoded(text)
		if !strings.Contains(want, Mark) {
			t.Fatalf("%s: a whole text keeps it: %q", name, want)
		}
		for at := 0; at < len(text); at += 1 + len(text)/200 {
			if got := streamed(r, text[:at], text[at:]); got != want {
				t.Fatalf("%s: divided at %d it is %q, not %q", name, at, got, want)
			}
		}
		if got := streamed(r, strings.Split(text, "")...); got != want {
			t.Errorf("%s: letter by letter it is %q, not %q", name, got, want)
		}
	}
}

// INV-17: of a value that begins with another one nothing is left, also where the text is
// divided behind the shorter: a key that was renewed may begin with the one before.
func TestStreamOfAValueInAnother(t *testing.T) {
	short, err := New("k-0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	long, err := New("k-0123456789abcdef-and-the-rest-of-it")
	if err != nil {
		t.Fatal(err)
	}
	r := NewRedactor(short, long)
	for _, text := range []string{"a " + long.Reveal() + " b", "a " + short.Reveal() + " b", long.Reveal(), short.Reveal(), short.Reveal() + long.Reveal()} {
		want := r.Decoded(text)
		for at := range len(text) {
			for kind, s := range map[string]*Stream{"text": r.Stream(), "bytes": r.Bytes()} {
				got := s.Next(text[:at]) + s.Next(text[at:]) + s.Rest()
				if strings.Contains(got, "-and") || strings.Contains(got, "0123") || got != want {
					t.Errorf("%s %q divided at %d: %q, not %q", kind, text, at, got, want)
				}
			}
		}
	}
}

// Nothing goes out that a look at the whole would find, whatever the pieces are.
func TestStreamOfAnything(t *testing.T) {
	r := known(t, token)
	bits := []string{token, token[:5], token[5:], "%", "\\", "&", "&#", "\\u00", "%2", " ", "plain text", "é"}
	for _, s := range scripts {
		bits = append(bits, s(token), s(token)[:7])
	}
	for seed := range uint64(300) {
		rnd := mathrand.New(mathrand.NewPCG(seed, 2))
		var pieces []string
		for range 1 + rnd.IntN(6) {
			bit := bits[rnd.IntN(len(bits))]
			at := rnd.IntN(len(bit) + 1)
			pieces = append(pieces, bit[:at], bit[at:])
		}
		if got := streamed(r, pieces...); strings.Contains(got, token) || r.Decoded(got) != got {
			t.Fatalf("seed %d: %q became %q", seed, pieces, got)
		}
	}
}

// What is held is bounded, and what is beyond it does not go out: there is no value of
// such length, and a beginning of one may be in it.
func TestStreamHoldsALittle(t *testing.T) {
	r := known(t, token)
	s := r.Stream()
	most := 0
	var out strings.Builder
	for range 100000 {
		out.WriteString(s.Next("&#0000000000"))
		most = max(most, len(s.held))
	}
	if bound := max(leastHeld, eachHeld*r.longest); most > bound {
		t.Errorf("%d bytes were held, and %d are the most", most, bound)
	}
	// Ordinary text, code and links are not delayed by more than an escape that is not over.
	for _, piece := range []string{"100% of it. ", "a && b; ", "C:\\work\\main ", "https://x.example/?q=%41%42&n=1 ", "&amp; ", "tail"} {
		s := r.Stream()
		if held := len(piece) - len(s.Next(piece)); held > longestName {
			t.Errorf("of %q %d bytes are held", piece, held)
		}
	}
}

// BenchmarkStream is a megabyte in pieces: text as a model writes it, and bytes as packages
// are.
func BenchmarkStream(b *testing.B) {
	r := known(b, token)
	bytes := make([]byte, 1<<20)
	_, _ = rand.Read(bytes)
	for _, c := range []struct {
		name string
		text string
		size int
	}{
		{"deltas", strings.Repeat("the quick brown fox jumps over 13% of lazy dogs\n", 1<<20/48), 24},
		{"packages", string(bytes), 32 << 10},
	} {
		b.Run(fmt.Sprint(c.name, " of ", c.size), func(b *testing.B) {
			b.SetBytes(int64(len(c.text)))
			begin := r.Stream
			if c.name == "packages" {
				begin = r.Bytes
			}
			for b.Loop() {
				s := begin()
				for rest := c.text; rest != ""; {
					n := min(c.size, len(rest))
					s.Next(rest[:n])
					rest = rest[n:]
				}
			}
		})
	}
}

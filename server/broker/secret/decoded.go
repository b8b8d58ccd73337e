package secret

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
)

const (
	// deepest layer of escapes that is taken off where they are mixed.
	deepest = 6
	// ordered layers of one kind each, in any order, that are taken off.
	ordered = 3
)

// Decoded is a text in which no known value stands, nor one that is written with
// escapes (of JSON and of programs, percent, HTML), wherever they are, however they are
// mixed, in several layers: a text need not be JSON, nor whole, to show
// a value to whoever reads it. All else stays as it was written. It takes time and
// memory in proportion to the text. INV-17.
func (r *Redactor) Decoded(text string) string { return r.hidden(text, false) }

// Cut is Decoded of a text that goes on where it was cut: an end that may begin a value,
// in whatever escapes, is left out. INV-17.
func (r *Redactor) Cut(text string) string { return r.hidden(text, true) }

func (r *Redactor) hidden(text string, cut bool) string {
	if len(r.patterns) == 0 {
		return text
	}
	w := &reading{r: r, cut: cut, end: len(text), seen: map[uint64]int{}}
	w.read(text)
	return masked(text[:w.end], w.found)
}

// read a text, and every layer of it.
func (w *reading) read(text string) {
	written := &layer{text: text, sure: len(text)}
	w.look(written)
	for l, depth := w.next(written, mixed), 1; l != nil; l, depth = w.next(l, mixed), depth+1 {
		w.look(l)
		if depth == deepest {
			break
		}
	}
	w.deeper(written, ordered)
}

// reading of a text: once with all escapes of a layer at a time, which finds what is
// written in several ways at once, and once with one kind at a time in every order, which
// finds what was written as a whole time after time.
type reading struct {
	r     *Redactor
	cut   bool
	found []span
	end   int            // of what may be shown
	seen  map[uint64]int // texts, by their hash, and how many layers were taken off them
}

// seed of hashes.
var seed = maphash.MakeSeed()

// deeper reads what is below a layer.
func (w *reading) deeper(l *layer, depth int) {
	if depth == 0 {
		return
	}
	for i := range mixed {
		n := w.next(l, mixed[i:i+1])
		if n == nil {
			continue
		}
		hash := maphash.String(seed, n.text)
		before, again := w.seen[hash]
		if again && before >= depth {
			continue
		}
		w.seen[hash] = depth
		w.look(n)
		w.deeper(n, depth-1)
	}
}

// next layer; nil: it says nothing new.
func (w *reading) next(l *layer, kinds string) *layer {
	n := l.next(w.r, kinds)
	if n != nil && w.cut {
		n.shorten() // what is left out here must not keep the next layer from its end
	}
	if n == nil || n.text == l.text {
		return nil
	}
	return n
}

// look for values, and for the beginning of one at the end.
func (w *reading) look(l *layer) {
	w.found = w.r.find(w.found, l)
	if w.cut {
		w.end = min(w.end, l.place(len(l.text)-w.r.partial(l.text)))
	}
}

// span of a text as it was written.
type span struct{ from, to int }

// find adds where values stand in a layer.
func (r *Redactor) find(found []span, l *layer) []span {
	for i := 0; i+1 < len(l.text); i++ {
		if !r.pairs.has(l.text[i], l.text[i+1]) {
			continue
		}
		for _, p := range r.begins[l.text[i]] {
			if strings.HasPrefix(l.text[i:], p) {
				found = append(found, span{l.place(i), l.after(i + len(p))})
				break // the longest comes first
			}
		}
	}
	for _, t := range l.tails {
		for _, p := range r.begins[t.text[0]] {
			if strings.HasPrefix(p, t.text) && strings.HasPrefix(l.text[t.end:], p[len(t.text):]) {
				found = append(found, span{l.place(int(t.from)), l.after(int(t.end) + len(p) - len(t.text))})
			}
		}
	}
	return found
}

// masked is a text with Mark in the place of each span.
func masked(text string, found []span) string {
	if len(found) == 0 {
		return text
	}
	slices.SortFunc(found, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var out strings.Builder
	done := 0
	for i := 0; i < len(found); {
		s := found[i]
		for i++; i < len(found) && found[i].from < s.to; i++ {
			s.to = max(s.to, found[i].to)
		}
		if s.from >= len(text) {
			break
		}
		out.WriteString(text[done:s.from])
		out.WriteString(Mark)
		done = min(s.to, len(text))
	}
	out.WriteString(text[done:])
	return out.String()
}

// layer is a text without some layers of its escapes.
type layer struct {
	text  string
	at    []uint32 // where each byte, and the end, begins in the text as it was written; nil: there
	sure  int      // bytes before an escape that the end of the text may have cut off
	tails []tail
}

// tail of an escape that may begin a value by itself: a % that stands before a value
// makes an escape of its beginning.
type tail struct {
	text      string
	from, end uint32 // of what the escape reads as
}

// shorten leaves out what is not sure.
func (l *layer) shorten() {
	l.text = l.text[:l.sure]
	if l.at != nil {
		l.at = l.at[:l.sure+1]
	}
	l.tails = slices.DeleteFunc(l.tails, func(t tail) bool { return int(t.end) > l.sure })
}

func (l *layer) place(i int) int {
	if l.at == nil {
		return i
	}
	return int(l.at[i])
}

// after is where the byte before i ends in the text as it was written.
func (l *layer) after(i int) int {
	if l.at == nil {
		return i
	}
	last := l.at[i-1]
	for i < len(l.text) && l.at[i] == last {
		i++
	}
	return int(l.at[i])
}

// next takes off a layer of escapes of some kinds; nil: there is none.
func (l *layer) next(r *Redactor, kinds string) *layer {
	if !strings.ContainsAny(l.text, kinds) {
		return nil
	}
	s := l.text
	n := &layer{at: make([]uint32, 0, len(s)+1), sure: -1}
	out := make([]byte, 0, len(s))
	read := false
	var begins [256]bool
	for i := range len(kinds) {
		begins[kinds[i]] = true
	}
	for i := 0; i < len(s); {
		plain := i
		for i < len(s) && !begins[s[i]] {
			n.at = append(n.at, uint32(l.place(i)))
			i++
		}
		if out = append(out, s[plain:i]...); i == len(s) {
			break
		}
		from, took, open := len(out), 0, false
		out, took, open = unescape(out, s[i:], len(kinds) > 1)
		if open && n.sure < 0 {
			n.sure = from
		}
		if took == 0 {
			took, out = 1, append(out, s[i])
		} else {
			read = true
			n.tails = r.tailsOf(n.tails, s[i:i+took], from, len(out))
		}
		for range len(out) - from {
			n.at = append(n.at, uint32(l.place(i)))
		}
		i += took
	}
	if !read && n.sure < 0 {
		return nil
	}
	n.text, n.at = string(out), append(n.at, uint32(l.place(len(s))))
	if n.sure < 0 {
		n.sure = len(n.text)
	}
	return n
}

// tailsOf adds those ends of an escape that begin a value.
func (r *Redactor) tailsOf(tails []tail, escape string, from, end int) []tail {
	for i := max(1, len(escape)-longestTail); i < len(escape); i++ {
		rest := escape[i:]
		if slices.ContainsFunc(r.begins[rest[0]], func(p string) bool { return strings.HasPrefix(p, rest) }) {
			tails = append(tails, tail{rest, uint32(from), uint32(end)})
		}
	}
	return tails
}

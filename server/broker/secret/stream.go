package secret

// Stream redacts text that comes in pieces, as Decoded does a whole one: a value stands
// in no piece that goes out, nor in what they are together, wherever it was divided and
// however it is written. It holds back only an end that may be the beginning of a value,
// so that ordinary text is never delayed, and at most so much of it. INV-17.
type Stream struct {
	r     *Redactor
	plain bool // escapes are no escapes
	held  string
}

const (
	// eachHeld is how much of a value's longest form may be held as often: what escapes
	// make of one byte.
	eachHeld = 32
	// leastHeld is held where values are short.
	leastHeld = 4 << 10
)

// Stream begins a new text.
func (r *Redactor) Stream() *Stream { return &Stream{r: r} }

// Bytes begins what is no text, such as an archive: nobody has written a value with
// escapes there, and to look for some takes time. Its known forms are removed.
func (r *Redactor) Bytes() *Stream { return &Stream{r: r, plain: true} }

// Next returns what may go out after piece came in.
func (s *Stream) Next(piece string) string {
	if len(s.r.patterns) == 0 {
		return piece
	}
	text := s.held + piece
	end, found := s.r.sure(text, s.plain)
	if len(text)-end > max(leastHeld, eachHeld*s.r.longest) {
		// No value is written at such length: whoever goes on like this would have all of
		// it kept here.
		s.held = ""
		return masked(text, append(found, span{end, len(text)}))
	}
	s.held = text[end:]
	return masked(text[:end], found)
}

// Rest returns what was held back, when the text has ended.
func (s *Stream) Rest() string {
	rest := s.held
	s.held = ""
	if s.plain {
		return s.r.Text(rest)
	}
	return s.r.Decoded(rest)
}

// sure is how much of a text that goes on can be told from what it has, and where values
// stand in that. One that ends beyond it is told later, as a whole: what comes may make
// it a longer one.
func (r *Redactor) sure(text string, plain bool) (end int, found []span) {
	w := &reading{r: r, cut: true, end: len(text), seen: map[uint64]int{}}
	if plain {
		w.look(&layer{text: text, sure: len(text)})
	} else {
		w.read(text)
	}
	for again := true; again; {
		again = false
		for _, s := range w.found {
			if s.from < w.end && w.end < s.to {
				w.end, again = s.from, true
			}
		}
	}
	return w.end, w.found
}

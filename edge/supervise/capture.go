package supervise

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
)

// capture keeps the first and the last part of a process's output, since both
// ends say most, and passes all of it on as it comes.
type capture struct {
	pass func([]byte) error

	mu    sync.Mutex // guards the fields below; standard output and error share it
	half  int
	head  []byte
	tail  []byte // the last bytes, at most twice half between two cuts
	total int64
}

// noteBytes is room for the marker of a cut and our own line.
const noteBytes = 200

func newCapture(limit int, pass func([]byte) error) *capture {
	return &capture{pass: pass, half: max(limit-noteBytes, 2*utf8.UTFMax) / 2}
}

// Write keeps p. Who listens too slowly makes the process wait; who is gone does not.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total += int64(len(p))
	rest := p
	if room := c.half - len(c.head); room > 0 {
		n := min(room, len(rest))
		c.head, rest = append(c.head, rest[:n]...), rest[n:]
	}
	if len(rest) > c.half {
		rest = rest[len(rest)-c.half:]
	}
	c.tail = append(c.tail, rest...)
	if len(c.tail) > 2*c.half {
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-c.half:]...)
	}
	if c.pass != nil && c.pass(p) != nil {
		c.pass = nil
	}
	return len(p), nil
}

// text is the output as valid UTF-8, with a marker where it was cut.
func (c *capture) text() (text string, truncated bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tail := c.tail[max(0, len(c.tail)-c.half):]
	dropped := c.total - int64(len(c.head)) - int64(len(tail))
	if dropped == 0 {
		return valid(append(c.head[:len(c.head):len(c.head)], tail...)), false
	}
	head := c.head
	for i := 0; i < utf8.UTFMax-1 && len(head) > 0 && !utf8.Valid(head[max(0, len(head)-utf8.UTFMax):]); i++ {
		head = head[:len(head)-1]
	}
	for i := 0; i < utf8.UTFMax-1 && len(tail) > 0 && !utf8.RuneStart(tail[0]); i++ {
		tail = tail[1:]
	}
	return valid(head) + fmt.Sprintf("\n[truncated: %d of %d bytes are left out here]\n", dropped, c.total) + valid(tail), true
}

func valid(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

package bubblewrap

import (
	"errors"
	"io"
	"os"
	"sync"
)

// budget is the number of output bytes that standard output and error share.
type budget struct {
	mu     sync.Mutex
	left   int64
	exceed func() // called once
	done   bool
}

// take grants at most n bytes.
func (b *budget) take(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if int64(n) <= b.left {
		b.left -= int64(n)
		return n
	}
	granted := int(b.left)
	b.left = 0
	if !b.done {
		b.done = true
		b.exceed()
	}
	return granted
}

// headSize is how much of standard error is kept to explain a failed start.
const headSize = 1024

// outlet copies one stream. After the budget is spent, or the writer failed, it
// only drains, so that nobody inside blocks instead of dying.
type outlet struct {
	from   *os.File
	to     io.Writer // may be nil
	budget *budget
	failed func(error)
	head   []byte
}

func (o *outlet) copy() {
	defer o.from.Close()
	buf := make([]byte, 32<<10)
	broken := o.to == nil
	for {
		n, err := o.from.Read(buf)
		if room := headSize - len(o.head); room > 0 && n > 0 {
			o.head = append(o.head, buf[:min(n, room)]...)
		}
		if n = o.budget.take(n); n > 0 && !broken {
			if _, werr := o.to.Write(buf[:n]); werr != nil {
				broken = true
				o.failed(werr)
			}
		}
		if err != nil {
			return
		}
	}
}

// feed copies standard input until the process closes it or it ends.
func feed(to *os.File, from io.Reader) {
	defer to.Close()
	_, _ = io.Copy(to, struct{ io.Reader }{from}) // EPIPE: the process did not want all of it
}

// pipe makes a pipe whose inside end belongs to uid: otherwise opening
// /dev/stderr inside is refused, and many programs do.
func pipe(uid, gid int, insideWrites bool) (ours, inside *os.File, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	ours, inside = w, r
	if insideWrites {
		ours, inside = r, w
	}
	if uid >= 0 {
		if err := inside.Chown(uid, gid); err != nil {
			return nil, nil, errors.Join(err, r.Close(), w.Close())
		}
	}
	return ours, inside, nil
}

// Package budget draws down the slices that capabilities carry, and the broker's
// own hourly caps, which no server can widen.
//
// It guarantees that reserved plus spent never exceeds a slice's ceiling when a
// call is admitted (INV-19), that a slice cut for another boot of the broker
// counts as spent, and that a closed slice is never drawn again. It keeps
// nothing on disk but the hours of the caps: the server's store is the record of
// slices. It refuses calls without a price. Test it with go test alone.
package budget

import (
	"sync"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
)

// tombTTL is how long a closed slice is remembered: longer than any capability
// that could still name it.
const tombTTL = 10 * time.Minute

// Slice as a capability states it.
type Slice struct {
	ID      protocol.SliceID
	Boot    string
	Ceiling int64 // cumulative, millionths of a US dollar
}

// Tokens used by a call.
type Tokens struct{ Input, Output int64 }

// Usage of one slice so far.
type Usage struct {
	Slice protocol.SliceID
	Drawn int64
	Tokens
	Open int // calls with a reservation
}

// Ledger of one boot.
type Ledger struct {
	boot    string
	elapsed lease.Elapsed

	mu     sync.Mutex // guards below
	slices map[protocol.SliceID]*account
	closed map[protocol.SliceID]tomb
}

// tomb keeps what a closed slice had drawn, so that a repeated question gets the
// same answer.
type tomb struct {
	at   time.Duration
	last Usage
}

type account struct {
	drawn, reserved int64
	tokens          Tokens
	open            int
}

// New ledger for one boot nonce.
func New(boot string, elapsed lease.Elapsed) *Ledger {
	return &Ledger{boot: boot, elapsed: elapsed, slices: map[protocol.SliceID]*account{}, closed: map[protocol.SliceID]tomb{}}
}

// Hold is a reservation. Settle it exactly once.
type Hold struct {
	ledger *Ledger
	id     protocol.SliceID
	acc    *account
	amount int64
	once   sync.Once
}

// Reserve takes amount from the slice before a call. INV-19.
func (l *Ledger) Reserve(s Slice, amount int64) (*Hold, error) {
	exhausted := func(format string, args ...any) (*Hold, error) {
		return nil, protocol.Errorf(protocol.CodeBudgetExhausted, format, args...)
	}
	switch {
	case s.ID == "":
		return exhausted("the capability carries no budget slice: nothing may be spent")
	case s.Boot != l.boot:
		// Not exhausted: the server cuts another slice as soon as it has heard of this start.
		return nil, protocol.Errorf(protocol.CodeUnavailable, "slice %s was cut for another start of this broker and counts as spent: the next slice will do", s.ID)
	case amount < 0:
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "a negative reservation")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, gone := l.closed[s.ID]; gone {
		return exhausted("slice %s is closed", s.ID)
	}
	acc := l.slices[s.ID]
	if acc == nil {
		acc = &account{}
		l.slices[s.ID] = acc
	}
	if left := s.Ceiling - acc.drawn - acc.reserved; amount > left {
		return exhausted("slice %s has %d of %d micro-USD left, the call may cost %d: raise the agent's max_cost, or ask for less output",
			s.ID, max(left, 0), s.Ceiling, amount)
	}
	acc.reserved += amount
	acc.open++
	return &Hold{ledger: l, id: s.ID, acc: acc, amount: amount}, nil
}

// Settle replaces the reservation by what was really used.
func (h *Hold) Settle(cost int64, t Tokens) {
	h.once.Do(func() {
		h.ledger.mu.Lock()
		defer h.ledger.mu.Unlock()
		h.acc.reserved -= h.amount
		h.acc.drawn += cost
		h.acc.tokens.Input += t.Input
		h.acc.tokens.Output += t.Output
		h.acc.open--
	})
}

// Amount that is reserved.
func (h *Hold) Amount() int64 { return h.amount }

// Usage of slices. An unknown slice has drawn nothing in this boot.
func (l *Ledger) Usage(ids ...protocol.SliceID) []Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Usage, 0, len(ids))
	for _, id := range ids {
		out = append(out, l.usageLocked(id))
	}
	return out
}

func (l *Ledger) usageLocked(id protocol.SliceID) Usage {
	if t, gone := l.closed[id]; gone {
		return t.last
	}
	u := Usage{Slice: id}
	if acc := l.slices[id]; acc != nil {
		// An open reservation counts as drawn: closing the slice now loses it.
		u.Drawn, u.Tokens, u.Open = acc.drawn+acc.reserved, acc.tokens, acc.open
	}
	return u
}

// Close refuses further draws and reports the last usage, an open reservation
// as spent.
func (l *Ledger) Close(ids ...protocol.SliceID) []Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.elapsed()
	for id, t := range l.closed {
		if now-t.at > tombTTL {
			delete(l.closed, id)
		}
	}
	out := make([]Usage, 0, len(ids))
	for _, id := range ids {
		last := l.usageLocked(id)
		out = append(out, last)
		delete(l.slices, id)
		l.closed[id] = tomb{at: now, last: last}
	}
	return out
}

// Package budget draws down the slices that capabilities carry, and the broker's
// own hourly caps, which no server can widen.
//
// It guarantees that reserved plus spent never exceeds a slice's ceiling when a
// call is admitted (INV-19), that a slice cut for another boot of the broker is
// never drawn, and that neither is a closed one. It notes every reservation before
// its call leaves, so that the next start knows what a boot that was killed can
// have spent at most: what was settled, and all of what was in flight. After the
// fall of the whole machine it knows nothing, and says so. The server's store is
// the record of slices. It refuses calls without a price. Test it with go test
// alone.
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
	// Drawn counts an open reservation, of which Reserved is the sum: closing the
	// slice now loses it.
	Drawn, Reserved int64
	// Largest reservation that was asked of it, granted or refused.
	Largest int64
	Tokens
	// Calls that used something, open ones too.
	Calls int64
	Open  int // calls with a reservation
}

// Ledger of one boot.
type Ledger struct {
	boot    string
	elapsed lease.Elapsed

	// mu guards below. Notes are written under it: their order is that of the draws,
	// and the page cache makes no one wait.
	mu     sync.Mutex
	slices map[protocol.SliceID]*account
	closed map[protocol.SliceID]tomb
	past   past
	notes  *notes // nil: memory only
	calls  int64  // reservations of this boot
}

// tomb keeps what a closed slice had drawn, so that a repeated question gets the
// same answer. Calls that were open when it was closed still settle.
type tomb struct {
	at  time.Duration
	acc *account
}

type account struct {
	drawn, reserved, largest int64
	tokens                   Tokens
	calls                    int64
	open                     map[int64]int64 // reservations by call
}

// New ledger for one boot nonce, in memory alone: it knows of no earlier boot.
func New(boot string, elapsed lease.Elapsed) *Ledger {
	return &Ledger{boot: boot, elapsed: elapsed, slices: map[protocol.SliceID]*account{}, closed: map[protocol.SliceID]tomb{}}
}

// Hold is a reservation. Settle it exactly once.
type Hold struct {
	ledger *Ledger
	id     protocol.SliceID
	acc    *account
	call   int64
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
		// Not exhausted: whoever asked gets another slice, and asks again.
		err := protocol.Errorf(protocol.CodeUnavailable, "slice %s was cut for another start of this broker: the next slice will do", s.ID)
		err.Detail = protocol.DetailSliceBoot
		return nil, err
	case amount < 0:
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "a negative reservation")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, gone := l.closed[s.ID]; gone {
		return exhausted("slice %s is closed", s.ID)
	}
	acc := l.accountLocked(s.ID)
	acc.largest = max(acc.largest, amount)
	if left := s.Ceiling - acc.drawn - acc.reserved; amount > left {
		return exhausted("slice %s has %d of %d micro-USD left, the call may cost %d: raise the agent's max_cost, or ask for less output",
			s.ID, max(left, 0), s.Ceiling, amount)
	}
	l.calls++
	if err := l.noteLocked(note{Kind: noteHold, Slice: s.ID, Call: l.calls, Cost: amount}); err != nil {
		return nil, protocol.Errorf(protocol.CodeUnavailable, "the call cannot be noted and does not leave: %w; mend the broker's disk", err)
	}
	acc.reserved += amount
	acc.open[l.calls] = amount
	return &Hold{ledger: l, id: s.ID, acc: acc, call: l.calls, amount: amount}, nil
}

func (l *Ledger) accountLocked(id protocol.SliceID) *account {
	acc := l.slices[id]
	if acc == nil {
		acc = &account{open: map[int64]int64{}}
		l.slices[id] = acc
	}
	return acc
}

// Settle replaces the reservation by what was really used.
func (h *Hold) Settle(cost int64, t Tokens) {
	h.once.Do(func() {
		l := h.ledger
		l.mu.Lock()
		defer l.mu.Unlock()
		h.acc.settle(h.call, cost, t)
		l.owedLocked(note{Kind: noteDone, Slice: h.id, Call: h.call, Cost: cost, Input: t.Input, Output: t.Output})
	})
}

func (a *account) settle(call, cost int64, t Tokens) {
	a.reserved -= a.open[call]
	delete(a.open, call)
	a.drawn += cost
	a.tokens.Input += t.Input
	a.tokens.Output += t.Output
	if cost > 0 || t != (Tokens{}) {
		a.calls++
	}
}

// usage counts what is open as spent.
func (a *account) usage(id protocol.SliceID) Usage {
	return Usage{Slice: id, Drawn: a.drawn + a.reserved, Reserved: a.reserved, Largest: a.largest, Tokens: a.tokens,
		Calls: a.calls + int64(len(a.open)), Open: len(a.open)}
}

// Amount that is reserved.
func (h *Hold) Amount() int64 { return h.amount }

// Usage of slices. One that is not known here has drawn nothing in this boot, nor
// in those that Boots names.
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
		return t.acc.usage(id)
	}
	if acc := l.slices[id]; acc != nil {
		return acc.usage(id)
	}
	old := l.past.slices[id]
	return Usage{Slice: id, Drawn: old.drawn, Tokens: old.tokens, Calls: old.calls}
}

// Boots are the earlier starts of which every draw is known.
func (l *Ledger) Boots() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.past.known()
}

// Close refuses further draws and reports the usage, an open reservation as spent.
// What is said of a slice with no open call is final.
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
		out = append(out, l.usageLocked(id))
		if _, gone := l.closed[id]; gone {
			continue
		}
		acc := l.slices[id]
		if acc == nil {
			old := l.past.slices[id]
			acc = &account{drawn: old.drawn, tokens: old.tokens, calls: old.calls}
		}
		delete(l.slices, id)
		l.closed[id] = tomb{at: now, acc: acc}
	}
	return out
}

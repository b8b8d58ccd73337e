package edge

import "sync"

// mailbox follows which deliveries are dealt with: the server may forget up to
// the last one before the first that is not. It outlives connections: a delivery
// that comes again while it is dealt with, or after, is not dealt with twice.
type mailbox struct {
	mu      sync.Mutex // guards the fields below
	open    map[int64]bool
	missed  map[int64]bool // could not be dealt with: wanted again
	highest int64
	acked   int64
}

// begin notes a delivery; it reports false for one that is being dealt with or
// that already was.
func (m *mailbox) begin(seq int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if seq <= m.highest && !m.missed[seq] {
		return false
	}
	if m.open == nil {
		m.open = map[int64]bool{}
	}
	delete(m.missed, seq)
	m.open[seq], m.highest = true, max(m.highest, seq)
	return true
}

func (m *mailbox) done(seq int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, seq)
}

// miss gives a delivery back that could not be dealt with: the next connection
// brings it again.
func (m *mailbox) miss(seq int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, seq)
	if m.missed == nil {
		m.missed = map[int64]bool{}
	}
	m.missed[seq] = true
}

// due is the sequence to acknowledge; ok is false when there is nothing new.
func (m *mailbox) due() (seq int64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seq = m.highest
	for _, unfinished := range []map[int64]bool{m.open, m.missed} {
		for s := range unfinished {
			seq = min(seq, s-1)
		}
	}
	return seq, seq > m.acked
}

func (m *mailbox) acknowledged(seq int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.acked = max(m.acked, seq)
}

// resume takes the server's cursor after a connect, and returns after which
// sequence its deliveries are wanted. A cursor behind what the server itself
// acknowledged is of a server that was put back to an earlier state: its numbers
// begin anew.
func (m *mailbox) resume(first int64) (after int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if first < m.acked {
		m.acked, m.highest, m.open, m.missed = 0, 0, nil, nil
	}
	after = max(0, first-1)
	m.acked, m.highest = max(m.acked, after), max(m.highest, after)
	return after
}

package broker

import (
	"sync"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
)

const (
	// movedKept is how long a turn without a deadline is remembered.
	movedKept = 25 * time.Hour
	// maxMoved turns are remembered at once.
	maxMoved = 100_000
)

// moved counts the bytes that package requests of each turn moved at each
// destination. It is in memory: a broker that starts again counts anew.
type moved struct {
	elapsed lease.Elapsed

	mu    sync.Mutex // guards turns
	turns map[movedKey]*movedBytes
}

type movedKey struct {
	turn        protocol.TurnID
	destination string
}

type movedBytes struct {
	n     int64
	until time.Duration // forgotten after it
}

func newMoved(e lease.Elapsed) *moved { return &moved{elapsed: e, turns: map[movedKey]*movedBytes{}} }

// take counts n more bytes of a turn that lasts for left, or refuses them. Where
// too many turns are remembered, no other begins: what is forgotten would count as
// nothing.
func (m *moved) take(key movedKey, n, most int64, left time.Duration) error {
	now := m.elapsed()
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.turns[key]
	if have == nil {
		if !m.roomLocked(now) {
			return protocol.Errorf(protocol.CodeRateLimited, "this broker remembers the packages of %d turns, and takes no other now", maxMoved)
		}
		have = &movedBytes{}
		m.turns[key] = have
	}
	have.until = now + left
	if have.n+n > most || n == 0 && have.n >= most {
		return protocol.Errorf(protocol.CodePolicyDenied, "this turn has moved its %d MiB at destination %s: see max_mib_per_turn in broker.hcl", most>>20, key.destination)
	}
	have.n += n
	return nil
}

func (m *moved) roomLocked(now time.Duration) bool {
	if len(m.turns) < maxMoved {
		return true
	}
	for key, b := range m.turns {
		if now > b.until {
			delete(m.turns, key)
		}
	}
	return len(m.turns) < maxMoved
}

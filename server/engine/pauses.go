package engine

import (
	"sync"
	"time"
)

// pauses remembers until when something is not tried again. It is memory only:
// after a restart everything is tried at once.
type pauses struct {
	mu    sync.Mutex // guards until
	until map[string]pause
}

type pause struct {
	at    time.Time
	tries int
}

// Pauses between two tries to learn, or to do again, what became of an effect: soon at
// first, since mostly an answer was lost, and then as seldom as a person would ask.
const minAskAgain, maxAskAgain = 500 * time.Millisecond, 10 * time.Second

// pauseKept is how long a pause that is over is remembered with its tries: work that is
// tried again later than that begins anew.
const pauseKept = 10 * time.Minute

func newPauses() *pauses { return &pauses{until: map[string]pause{}} }

// set holds a key until an instant.
func (p *pauses) set(key string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until[key] = pause{at: at, tries: p.until[key].tries}
}

// again holds a key for a while that doubles with each try, up to a bound.
func (p *pauses) again(key string, now time.Time, first, most time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.until[key].tries
	p.until[key] = pause{at: now.Add(min(most, first<<min(n, 16))), tries: n + 1}
}

// over reports that a key may be tried now.
func (p *pauses) over(key string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !now.Before(p.until[key].at)
}

// left is how long a key is still held.
func (p *pauses) left(key string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.until[key].at.Sub(now)
}

func (p *pauses) forget(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.until, key)
}

// next is how soon the earliest pause ends.
func (p *pauses) next() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := time.Hour
	for key, u := range p.until {
		left := time.Until(u.at)
		if left < -pauseKept {
			delete(p.until, key) // its work is long gone
			continue
		}
		if left > 0 {
			next = min(next, left)
		}
	}
	return next
}

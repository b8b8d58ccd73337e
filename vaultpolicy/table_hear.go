package vaultpolicy

import (
	"time"
)

// hear says that the server answered a question about the broker itself.
func (t *table) hear(sent time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard, t.silence = max(t.heard, sent), nil
}

// heardWithin reports that the server answered such a question a short time ago, and
// was not silent since.
func (t *table) heardWithin(d time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.silence == nil && t.heard > 0 && t.now()-t.heard <= d
}

// silent keeps the reason for the words of alive.
func (t *table) silent(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.silence = err
}

// whole says that the index was read whole, from a reading of the clock on.
func (t *table) whole(started time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listed = true
	for id, asked := range t.unknown {
		if asked > 0 && asked <= started {
			t.unknown[id] = -1 // it was looked for
		} else if asked < 0 {
			delete(t.unknown, id) // and may be looked for again
		}
	}
}

// whyLocked is the end of a sentence about silence.
func (t *table) whyLocked() string {
	if t.silence == nil {
		return ""
	}
	return ": " + t.silence.Error()
}

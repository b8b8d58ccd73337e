package engine

import (
	"context"
	"sync"

	"bivouac/edge/protocol"
	"bivouac/server/store"
)

// liveBuffer is how many text deltas a slow watcher may be behind before it
// loses some. Live text is never durable: the whole message is.
const liveBuffer = 256

// Live is one thing that watchers are told and nobody keeps.
type Live struct {
	// Text that a model adds to its answer; empty: it is about staging.
	Text    string
	Staging Staging
}

// Staging is how far a turn's workspace has come to its machine.
type Staging struct {
	Turn     protocol.TurnID
	Runner   protocol.RunnerID
	Sent, Of int64 // bytes
}

// LiveHub fans the text of running turns out to whoever watches their session.
type LiveHub struct {
	mu       sync.Mutex // guards watchers
	watchers map[protocol.SessionID]map[chan Live]struct{}
}

func newLiveHub() *LiveHub {
	return &LiveHub{watchers: map[protocol.SessionID]map[chan Live]struct{}{}}
}

// Publish hands text to the watchers of a session and waits for none.
func (h *LiveHub) Publish(s protocol.SessionID, text string) { h.tell(s, Live{Text: text}) }

func (h *LiveHub) tell(s protocol.SessionID, m Live) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.watchers[s] {
		select {
		case ch <- m:
		default: // a slow watcher loses text, nobody else waits
		}
	}
}

// Subscribe returns what is live of a session from now on, until stop.
func (h *LiveHub) Subscribe(s protocol.SessionID) (live <-chan Live, stop func()) {
	ch := make(chan Live, liveBuffer)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watchers[s] == nil {
		h.watchers[s] = map[chan Live]struct{}{}
	}
	h.watchers[s][ch] = struct{}{}
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watchers[s], ch)
		if len(h.watchers[s]) == 0 {
			delete(h.watchers, s)
		}
	}
}

// WatchLive is what is live of a session that the caller may see.
func (e *Engine) WatchLive(ctx context.Context, c store.Caller, s protocol.SessionID) (live <-chan Live, stop func(), err error) {
	err = e.cfg.Store.View(ctx, c, func(tx *store.Tx) error {
		_, err := tx.Session(s)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	live, stop = e.live.Subscribe(s)
	return live, stop, nil
}

package intentions

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"bivouac/consul"
	"bivouac/consul/client"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
)

const (
	// apart are two questions about one destination at least.
	apart = 50 * time.Millisecond
	// busy is how far apart they are at most while Consul says that something changed,
	// and nothing of this destination did.
	busy = 250 * time.Millisecond
)

// watch is one destination. One goroutine follows it.
type watch struct {
	name   string
	known  atomic.Pointer[known]
	taking sync.Mutex // held by who takes an answer in
}

// known is what was learned of a destination. It does not change.
type known struct {
	set   *consul.Set // nil: nothing yet
	body  []byte
	index uint64
	// asked is when the newest answer was asked for.
	asked time.Duration
	// fault of the newest question; nil: it was answered.
	fault error
}

// lacks says what is not known, and why.
func (k *known) lacks(what string) string {
	if k == nil || k.fault == nil {
		return what
	}
	return what + ": " + k.fault.Error()
}

// follow asks about one destination until ctx ends.
func (s *Server) follow(ctx context.Context, w *watch, changed func()) error {
	var index uint64
	var failed, idle int
	for ctx.Err() == nil {
		sent := s.p.Elapsed()
		a, err := s.p.Source.Match(ctx, w.name, index, s.wait)
		if err == nil {
			var news bool
			if news, err = s.learn(w, a, sent); news {
				changed()
			}
			idle = quiet(idle, news, a.Index != index && a.Index != 0, s.p.Elapsed()-sent >= s.wait/2)
			// Backwards is another history: a restored snapshot, or a new cluster.
			index = next(index, a.Index)
		}
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			failed++
			index = 0 // whoever answers next may know another history
			s.failed(w, err)
			op.Sleep(ctx, jittered(backoff(failed, apart, s.wait)))
			continue
		}
		failed = 0
		if early := s.pace(idle, a.Index == 0) - (s.p.Elapsed() - sent); early > 0 {
			op.Sleep(ctx, early)
		}
	}
	return nil
}

// next index to ask with.
func next(asked, answered uint64) uint64 {
	if answered < asked {
		return 0
	}
	return answered
}

// quiet counts answers in a row that came early and brought nothing: moved ones, for
// another destination's sake, count up to busy alone.
func quiet(idle int, news, moved, held bool) int {
	const most = 16
	switch {
	case news || held:
		return 0
	case moved:
		return min(idle+1, 3) // 50 ms << 3, cut at busy
	}
	return min(idle+1, most)
}

// pace is how long after a question the next one follows at the earliest.
func (s *Server) pace(idle int, noIndex bool) time.Duration {
	d := backoff(idle, apart, s.wait)
	if noIndex {
		return max(d, busy) // it is not held, whatever it says
	}
	if idle <= 3 {
		return min(d, busy)
	}
	return d
}

// backoff doubles from least up to most.
func backoff(n int, least, most time.Duration) time.Duration {
	d := least
	for range n {
		if d *= 2; d >= most {
			return most
		}
	}
	return d
}

// jittered is a part of d that is not nothing.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// learn takes an answer in, and reports whether it says something else than the last.
func (s *Server) learn(w *watch, a client.Answer, sent time.Duration) (news bool, err error) {
	w.taking.Lock()
	defer w.taking.Unlock()
	old := w.known.Load()
	set, body := (*consul.Set)(nil), a.Body
	if old != nil && old.set != nil && sent < old.asked && a.Index < old.index {
		return false, nil // it was asked for earlier, and speaks of before
	}
	if old != nil && old.set != nil && bytes.Equal(old.body, body) {
		set = old.set
	} else {
		if set, err = setOf(w.name, body); err != nil {
			return false, protocol.Errorf(protocol.CodeUnavailable, "Consul's answer about %s: %w", w.name, err)
		}
		set, news = set.Silent(silent), true
	}
	// An older question may be answered later than a newer one; it makes nothing older.
	if old != nil && old.set != nil && sent < old.asked && !news {
		sent = old.asked
	}
	w.known.Store(&known{set: set, body: body, index: a.Index, asked: sent})
	if news && old != nil && old.set != nil {
		s.p.Log.Info("intentions of a destination changed", "destination", w.name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing[w.name] {
		if delete(s.failing, w.name); len(s.failing) == 0 {
			s.p.Log.Info("Consul answers again about every destination")
		}
	}
	return news, nil
}

// failed notes why nothing was learned, and says so once for each destination: a server
// that is away is no news for the others.
func (s *Server) failed(w *watch, err error) {
	w.taking.Lock()
	defer w.taking.Unlock()
	k := known{}
	if old := w.known.Load(); old != nil {
		k = *old
	}
	k.fault = err
	w.known.Store(&k)
	s.mu.Lock()
	defer s.mu.Unlock()
	first := len(s.failing) == 0
	if s.failing[w.name] {
		return
	}
	s.failing[w.name] = true
	kind := client.KindOf(err)
	if first || kind == client.Refused {
		s.p.Log.Error("who may reach a destination is not known; nothing new begins once the last answer is too old",
			"destination", w.name, "after", s.p.Fresh, "open_flows_end_after", s.p.Grace, "error", err, "mend", client.Mend(err))
	}
}

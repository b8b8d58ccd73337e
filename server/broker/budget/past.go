package budget

import (
	"maps"
	"slices"
	"time"

	"bivouac/edge/protocol"
)

// pastTTL is how long earlier boots are remembered: longer than any turn runs.
const pastTTL = 7 * 24 * time.Hour

// maxBoots bounds how many of them there are.
const maxBoots = 64

// past is what earlier boots spent, at most.
type past struct {
	boots  map[string]time.Time // when each had ended
	slices map[protocol.SliceID]spent
}

// spent of one slice.
type spent struct {
	boot   string
	drawn  int64
	tokens Tokens
	calls  int64
}

func newPast() past {
	return past{boots: map[string]time.Time{}, slices: map[protocol.SliceID]spent{}}
}

// known boots, newest first.
func (p past) known() []string {
	return slices.SortedFunc(maps.Keys(p.boots), func(a, b string) int { return p.boots[b].Compare(p.boots[a]) })
}

// forget drops what no turn asks for any more.
func (p past) forget(now time.Time) {
	for i, boot := range p.known() {
		if i >= maxBoots || now.Sub(p.boots[boot]) > pastTTL {
			delete(p.boots, boot)
		}
	}
	maps.DeleteFunc(p.slices, func(_ protocol.SliceID, s spent) bool { _, known := p.boots[s.boot]; return !known })
}

// reading is a file of notes while it is read.
type reading struct {
	past past
	boot string // of what follows
	live map[protocol.SliceID]*account
}

func (r *reading) apply(n note) {
	switch n.Kind {
	case notePast:
		r.past.boots[n.Boot] = time.UnixMicro(n.AtUs)
	case noteBoot:
		r.boot = n.Boot
	case noteSum:
		if n.Boot != r.boot {
			r.past.slices[n.Slice] = spent{boot: n.Boot, drawn: n.Cost, tokens: Tokens{n.Input, n.Output}, calls: n.Calls}
			return
		}
		a := r.account(n.Slice)
		a.drawn, a.tokens, a.calls = n.Cost, Tokens{n.Input, n.Output}, n.Calls
	case noteHold:
		a := r.account(n.Slice)
		a.open[n.Call], a.reserved = n.Cost, a.reserved+n.Cost
	case noteDone:
		if a := r.account(n.Slice); a.holds(n.Call) {
			a.settle(n.Call, n.Cost, Tokens{n.Input, n.Output})
		}
	}
}

func (a *account) holds(call int64) bool { _, held := a.open[call]; return held }

func (r *reading) account(id protocol.SliceID) *account {
	if r.live[id] == nil {
		r.live[id] = &account{open: map[int64]int64{}}
	}
	return r.live[id]
}

// end takes the boot that wrote the file for over: of what it had in flight it
// can have spent all. INV-19.
func (r *reading) end(now time.Time) past {
	if r.boot != "" {
		r.past.boots[r.boot] = now
		for id, a := range r.live {
			u := a.usage(id)
			r.past.slices[id] = spent{boot: r.boot, drawn: u.Drawn, tokens: u.Tokens, calls: u.Calls}
		}
	}
	r.past.forget(now)
	return r.past
}

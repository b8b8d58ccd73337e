package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/server/api/apiv1"
)

// quietFor is how long nothing happens before a person is told why.
const quietFor = 2 * time.Second

// quiet is what a follower knows of the silence of its turn.
type quiet struct {
	mu    sync.Mutex // guards the follower: one event is handled, or one wait told, at a time
	seen  int        // messages that were handled
	told  string     // the wait that was said last
	asked bool       // an approval was shown, with its commands
}

// watch handles every message of the turn, and meanwhile says what it waits for
// when it is quiet.
func (f *follower) watch(ctx context.Context, session string, after int64) error {
	waiting, stop := context.WithCancel(ctx)
	var g errgroup.Group
	if !f.app.json {
		g.Go(func() error { f.tellWaits(waiting); return nil })
	}
	err := f.client.Watch(ctx, session, after, func(m *apiv1.WatchEventsResponse) error {
		f.quiet.mu.Lock()
		defer f.quiet.mu.Unlock()
		if m.GetEvent() != nil || m.GetTextDelta() != "" {
			f.quiet.seen++
		}
		return f.handle(ctx, m)
	})
	stop()
	_ = g.Wait() // it has no error
	return err
}

// tellWaits asks why, each time that the turn was quiet for a moment.
func (f *follower) tellWaits(ctx context.Context) {
	t := time.NewTicker(quietFor)
	defer t.Stop()
	for before := -1; ; {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		f.quiet.mu.Lock()
		now := f.quiet.seen
		f.quiet.mu.Unlock()
		if now != before {
			before = now
			continue
		}
		res, err := f.client.Turns.Explain(ctx, &apiv1.ExplainRequest{Id: f.turn})
		if err != nil {
			continue // a lost connection has its own line
		}
		f.quiet.mu.Lock()
		if f.quiet.seen == now {
			f.tellWait(res)
		}
		f.quiet.mu.Unlock()
	}
}

// tellWait says what somebody could do something about, once.
func (f *follower) tellWait(x *apiv1.ExplainResponse) {
	asked := f.quiet.asked && x.GetState() == "WAITING_APPROVAL"
	text := waitText(f.turn, x)
	if asked || text == "" || text == f.quiet.told {
		return
	}
	f.quiet.told = text
	f.breakLine()
	fmt.Fprint(f.app.err, text)
}

// waitText is a wait as a person reads it; empty for one that is work going on,
// about which there is nothing to do.
func waitText(turn string, x *apiv1.ExplainResponse) string {
	if x.GetState() != "QUEUED" && len(x.GetRemedies()) == 0 && len(x.GetRunners()) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "  · waiting: %s\n", plain(x.GetWaitingFor()))
	for _, r := range x.GetRemedies() {
		fmt.Fprintf(&b, "      try: %s\n", plain(r))
	}
	fmt.Fprintf(&b, "      or stop it: bivouac cancel %s\n", turn)
	return b.String()
}

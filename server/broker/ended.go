package broker

import (
	"context"
	"slices"
	"sync"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// Bounds of telling the server.
const (
	endedPage = 256              // grants of one report; the server takes no more
	endedCall = 2 * time.Minute  // a report ends the work under all of them
	endedWait = 15 * time.Second // before what is not settled is told again
)

// ended are the grants that ended at the authority. The server is told of all of
// them on each new connection, and of those that it has not settled again and
// again: a server that was restored from a backup learns what was taken back since.
type ended struct {
	mu    sync.Mutex // guards below
	all   []authority.Ended
	known map[protocol.GrantID]bool
	more  chan struct{} // closed and replaced with each new one
}

func newEnded() *ended {
	return &ended{known: map[protocol.GrantID]bool{}, more: make(chan struct{})}
}

// add notes one. first: nobody had said so before.
func (e *ended) add(g authority.Ended) (first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known[g.Grant] {
		return false
	}
	e.known[g.Grant], e.all = true, append(e.all, g)
	close(e.more)
	e.more = make(chan struct{})
	return true
}

// after returns those from the nth on, and a channel that is closed when there are
// more.
func (e *ended) after(n int) ([]authority.Ended, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all[n:]), e.more
}

// grantEnded closes what runs under a grant that ended at the authority, which
// refuses it by now, and has the server told. INV-13.
func (b *Broker) grantEnded(g authority.Ended) {
	if !b.ended.add(g) {
		return
	}
	b.log.Info("a grant ended at the authority", "grant", g.Grant, "how", g.How)
	// Those under it alone: many may end at once, and many flows be open.
	b.sweep(func(r *request) error {
		if r.claims.Grant != g.Grant {
			return nil
		}
		return b.still(r)
	})
}

// tellEnded runs beside a feed.
func (b *Broker) tellEnded(ctx context.Context, server brokerv1connect.FeedServiceClient) {
	told := 0
	var open []authority.Ended // told and not settled
	for {
		news, more := b.ended.after(told)
		told += len(news)
		open = b.report(ctx, server, append(open, news...))
		var again <-chan time.Time
		if len(open) > 0 {
			again = time.After(endedWait)
		}
		select {
		case <-ctx.Done():
			return
		case <-more:
		case <-again:
		}
	}
}

// report tells of grants and returns those that the server has not settled.
func (b *Broker) report(ctx context.Context, server brokerv1connect.FeedServiceClient, list []authority.Ended) (open []authority.Ended) {
	for page := range slices.Chunk(list, endedPage) {
		in := &brokerv1.ReportEndedRequest{}
		for _, g := range page {
			in.Grants = append(in.Grants, &brokerv1.EndedGrant{GrantId: g.Grant.String(), SeenUs: g.At.UnixMicro(), How: g.How})
		}
		call, cancel := context.WithTimeout(ctx, endedCall)
		out, err := server.ReportEnded(call, in)
		cancel()
		if err != nil && ctx.Err() == nil {
			b.log.Warn("the server was not told which grants ended at the authority; their flows are closed here", "grants", len(page), "error", err)
		}
		for _, g := range page {
			if !slices.Contains(out.GetSettled(), g.Grant.String()) {
				open = append(open, g)
			}
		}
	}
	return open
}

package runnerapi

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/legible"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/engine"
)

// Bounds of one report.
const (
	endedMost    = 256 // grants in it
	endedAtOnce  = 8   // revocations that run at a time
	endedHowMost = 200 // characters of how it ended
)

// ReportEnded ends here what a broker says has ended at its authority. INV-13. A
// hostile broker could refuse a grant for as long as it is one; by a lie it ends the
// grant for good, and the person makes another. It can give nobody anything.
func (s feeds) ReportEnded(ctx context.Context, r *brokerv1.ReportEndedRequest) (*brokerv1.ReportEndedResponse, error) {
	if len(r.GetGrants()) > endedMost {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "a report has at most %d grants", endedMost)
	}
	list := make([]engine.EndedGrant, 0, len(r.GetGrants()))
	for _, g := range r.GetGrants() {
		id, err := protocol.ParseID[protocol.GrantKind](g.GetGrantId())
		if err != nil { // the others count all the same
			s.Log.WarnContext(ctx, "a broker tells of something that is no grant", "error", err)
			continue
		}
		list = append(list, engine.EndedGrant{ID: id, Seen: time.UnixMicro(g.GetSeenUs()), How: legible.Line(cut(g.GetHow(), endedHowMost))})
	}
	settled := make([]bool, len(list))
	var g errgroup.Group
	g.SetLimit(endedAtOnce)
	for i, ended := range list {
		g.Go(func() (err error) {
			if settled[i], err = s.Engine.GrantEnded(ctx, ended); err != nil {
				// It is not settled, so that the broker says it again.
				s.Log.WarnContext(ctx, "a grant that ended at the authority is not revoked here yet", "grant", ended.ID, "error", err)
			}
			return nil
		})
	}
	err := g.Wait()
	out := &brokerv1.ReportEndedResponse{}
	for i, ended := range list {
		if settled[i] {
			out.Settled = append(out.Settled, ended.ID.String())
		}
	}
	return out, err
}

// cut keeps the first n characters.
func cut(text string, n int) string {
	if r := []rune(text); len(r) > n {
		return string(r[:n])
	}
	return text
}

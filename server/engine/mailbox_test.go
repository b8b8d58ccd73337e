package engine_test

import (
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// An offer whose acknowledgement was lost is delivered again: whole while the
// attempt is the machine's own, since the answer to its claim may be lost too, and
// empty when it ended or went elsewhere. A machine that no longer knows it would ask
// its owner a second time about work that is done. INV-6.
func TestOldOfferComesEmpty(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		other := w.Join("desktop", "files.read")
		other.Claims, r.Claims = false, false
		r.Acks, other.Acks = false, false
		turn := w.Submit(w.Session("coder"), "fix it")
		w.Settle()
		first, second := r, other
		if first.Offered == nil {
			first, second = other, r
		}
		mailed := func(x *et.Runner, offers int) {
			t.Helper()
			items, err := w.Engine.Mail(ctx(), x.Caller(), x.Epoch(), 0, 64)
			if err != nil {
				t.Fatal(err)
			}
			whole := 0
			for n, m := range items {
				if m.Seq != int64(n)+1 {
					t.Errorf("delivery %d has place %d", n, m.Seq)
				}
				if m.GetOffer() != nil {
					whole++
				}
			}
			if whole != offers || len(items) == 0 {
				t.Errorf("%d of %d deliveries are offers, want %d", whole, len(items), offers)
			}
		}
		mailed(first, 1)
		if err := w.Engine.Decline(ctx(), first.Caller(), &runnerv1.DeclineRequest{AttemptId: first.Offered.AttemptId, Epoch: first.Epoch(), Reason: "busy"}); err != nil {
			t.Fatal(err)
		}
		second.Claims = true
		w.Settle()
		h := second.Turn()
		if h.ID != protocol.AttemptID(first.Offered.AttemptId) {
			t.Fatalf("%s runs, and %s was offered first", h.ID, first.Offered.AttemptId)
		}
		mailed(first, 0)
		mailed(second, 1)
		h.Begin()
		h.Finish("done", "")
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		mailed(second, 0)
	})
}

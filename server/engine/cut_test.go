package engine_test

import (
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
	"bivouac/server/store"
)

// INV-5, INV-13: a call that a revocation cuts off after it left is UNKNOWN, whatever the
// cut is called and whichever is seen first, the grant's end or the call's. The twin was
// refused before it left, and that is known.
func TestRevocationCutsACall(t *testing.T) {
	revoked := protocol.Errorf(protocol.CodePermissionDenied, "the grant was revoked")
	for _, c := range []struct {
		name  string
		ended bool // the turn, before the call's end is seen
		cut   error
		want  session.ActionState
	}{
		{"in the middle", false, protocol.Errorf(protocol.CodeOutcomeUnknown, "it had not answered when the call ended: %w", revoked), session.ActionUnknown},
		{"with the connection", false, protocol.Errorf(protocol.CodeUnavailable, "cut off"), session.ActionUnknown},
		{"in the middle, after the turn", true, protocol.Errorf(protocol.CodeOutcomeUnknown, "it had not answered when the call ended: %w", revoked), session.ActionUnknown},
		{"with the connection, after the turn", true, protocol.Errorf(protocol.CodeUnavailable, "cut off"), session.ActionUnknown},
		{"before it left", false, revoked, session.Denied},
		{"before it left, after the turn", true, revoked, session.Denied},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *et.World, _ *et.Runner) {
				g := give(t, w, "weather-token")
				w.Broker.Certain()
				var turn session.Turn
				w.Broker.Serve("http:send", func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
					err := w.Store.Update(ctx(), w.Me(), func(tx *store.Tx) error { _, err := tx.RevokeGrant(g.ID, ""); return err })
					if err == nil && c.ended {
						_, err = w.Engine.CancelTurn(ctx(), w.Me(), turn.ID)
					}
					if err != nil {
						t.Error(err)
					}
					return nil, c.cut
				})
				w.Broker.Say(et.Script(et.Calls(sent), et.Text("done")))
				turn = w.Submit(w.Session("assistant"), "send")
				w.Settle()
				approve(t, w, turn.ID, true)
				w.Sleep(2 * time.Minute)
				all := w.Actions(turn.ID) // the one that was approved follows the one that asked
				if len(all) != 2 || all[1].State != c.want {
					t.Errorf("%+v", all)
				}
				if got := w.Turn(turn.ID); !got.State.Terminal() {
					t.Errorf("the turn is %s", got.State)
				}
			})
		})
	}
}

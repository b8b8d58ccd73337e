package engine_test

import (
	"sync/atomic"
	"testing"
	"time"

	"bivouac/edge/protocol"
	et "bivouac/server/engine/enginetest"
)

// A call that was held up in the broker until the cleanup brought its rotation to the
// end is told of the success, with its receipt; one whose rotation was given up
// meanwhile is told so. INV-4.
func TestRotationThatTheCleanupEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		step   string
		disown bool
	}{
		"before the new part":       {"rotate", false},
		"before the old part ended": {"settle", false},
		"given up":                  {"rotate", true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *et.World, _ *et.Runner) {
				g := give(t, w, "weather-token")
				s := talked(t, w)
				hold := make(chan struct{})
				var once atomic.Bool
				w.Broker.OnRotation(func(step string) {
					if step == tc.step && once.CompareAndSwap(false, true) {
						<-hold
					}
				})
				var told []string
				var receipt string
				done := make(chan error, 1)
				go func() {
					r, err := w.Engine.RotateGrant(ctx(), w.Me(), g.ID)
					told, receipt = r.Sessions, r.Receipt
					done <- err
				}()
				w.Sleep(time.Second)
				if tc.disown {
					w.Broker.Disown(g.ID)
				}
				w.Sleep(2 * time.Minute)
				w.Settle()
				after := storedGrant(t, w, g.ID)
				close(hold)
				err := <-done
				if after.Rotation != "" {
					t.Fatalf("the cleanup did not end it: %+v", after)
				}
				if tc.disown {
					wantCode(t, "a rotation that was given up", err, protocol.CodeNotFound)
					return
				}
				if err != nil || receipt == "" || receipt != after.RotationReceipt || len(told) != 1 || told[0] != s.ID.String() {
					t.Errorf("told %v, receipt %q, %v", told, receipt, err)
				}
				if now := storedGrant(t, w, g.ID); !w.Broker.Opens(g.ID, now.Sealed) || rotations(w, s.ID) != 1 {
					t.Errorf("what is stored opens nothing, or it was told %d times", rotations(w, s.ID))
				}
			})
		})
	}
}

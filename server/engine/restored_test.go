package engine_test

import (
	"testing"
	"time"

	et "bivouac/server/engine/enginetest"
	"bivouac/server/policy"
)

// A broker's grants are restored from a backup: what was renewed since is renewed once
// more by itself, so that the part of the backup, which was ended, is refused again and
// the stored one counts. Nothing else is renewed, and nothing twice. INV-13, INV-18.
func TestRestoredGrantsAreRenewed(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		g, gone, before, never := give(t, w, "weather-token"), give(t, w, "weather-token"), give(t, w, "weather-token"), give(t, w, "weather-token")
		rotate := func(g policy.Grant) policy.Grant {
			if _, err := w.Engine.RotateGrant(ctx(), w.Me(), g.ID); err != nil {
				t.Fatal(err)
			}
			w.Sleep(time.Second)
			return storedGrant(t, w, g.ID)
		}
		beforeCopy := rotate(before)
		inCopy := rotate(g)
		w.Sleep(10 * time.Minute)
		copied := w.Broker.Copy()
		w.Sleep(10 * time.Minute)
		lost := rotate(g)
		rotate(gone)
		revokeGrant(t, w, gone.ID)
		w.Sleep(10 * time.Minute)
		w.Broker.PutBack(copied)
		if !w.Broker.Opens(g.ID, inCopy.Sealed) || w.Broker.Opens(g.ID, lost.Sealed) {
			t.Fatal("the restored broker has the newer part, so the test shows nothing")
		}
		w.Sleep(time.Minute)
		now := storedGrant(t, w, g.ID)
		if w.Broker.Opens(g.ID, inCopy.Sealed) || w.Broker.Opens(g.ID, lost.Sealed) || !w.Broker.Opens(g.ID, now.Sealed) {
			t.Error("an older part counts, or the one that is stored does not")
		}
		if !now.RotatedAt.After(lost.RotatedAt) || now.Rotation != "" || now.RotationReceipt == "" || now.RotationReceipt == lost.RotationReceipt {
			t.Errorf("renewed once more: %+v", now)
		}
		for range 2 {
			w.Restart()
			w.Sleep(2 * time.Minute)
			if again := storedGrant(t, w, g.ID); !again.RotatedAt.Equal(now.RotatedAt) {
				t.Errorf("renewed again at %s", again.RotatedAt)
			}
		}
		if b := storedGrant(t, w, before.ID); !b.RotatedAt.Equal(beforeCopy.RotatedAt) || !w.Broker.Opens(before.ID, b.Sealed) {
			t.Errorf("renewed before the backup: %+v", b)
		}
		if n := storedGrant(t, w, never.ID); !n.RotatedAt.IsZero() || !w.Broker.Opens(never.ID, n.Sealed) {
			t.Errorf("never renewed: %+v", n)
		}
		if r := storedGrant(t, w, gone.ID); r.RevokedAt.IsZero() || r.Rotation != "" {
			t.Errorf("revoked since: %+v", r)
		}
		// A second restore of the same backup is another one.
		w.Broker.PutBack(copied)
		w.Sleep(time.Minute)
		if last := storedGrant(t, w, g.ID); w.Broker.Opens(g.ID, inCopy.Sealed) || !w.Broker.Opens(g.ID, last.Sealed) {
			t.Error("after another restore an older part counts, or the one that is stored does not")
		}
	})
}

package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

func storedGrant(t *testing.T, w *et.World, id protocol.GrantID) (g policy.Grant) {
	t.Helper()
	if err := w.Store.View(ctx(), w.Me(), func(tx *store.Tx) (err error) { g, err = tx.Grant(id); return err }); err != nil {
		t.Fatal(err)
	}
	return g
}

func rotations(w *et.World, s protocol.SessionID) (n int) {
	for _, of := range w.Types(s) {
		if of == session.GrantRotated {
			n++
		}
	}
	return n
}

// talked makes a session whose turn stood on the grants that there are.
func talked(t *testing.T, w *et.World) session.Session {
	t.Helper()
	w.Broker.Say(et.Script(et.Text("hello")))
	s := w.Session("assistant")
	turn := w.Submit(s, "hello")
	w.Settle()
	wantState(t, w, turn.ID, session.Completed, "")
	return s
}

// A rotation renews what is sealed and ends nothing: conversations go on, and each is
// told once. It is refused for others, and for a grant that ended.
func TestRotateGrant(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		g := give(t, w, "weather-token")
		s := talked(t, w)
		before := storedGrant(t, w, g.ID)
		_, bob := w.Principal("local", "bob", false)
		_, carol := w.Principal("local", "carol", true)
		_, err := w.Engine.RotateGrant(ctx(), et.Caller(bob), g.ID)
		wantCode(t, "another's grant", err, protocol.CodeNotFound)
		if now := storedGrant(t, w, g.ID); now.Rotation != "" || !w.Broker.Opens(g.ID, before.Sealed) {
			t.Error("a refused rotation left something")
		}
		for i, c := range []store.Caller{w.Me(), et.Caller(carol)} {
			r, err := w.Engine.RotateGrant(ctx(), c, g.ID)
			if err != nil {
				t.Fatal(err)
			}
			after := storedGrant(t, w, g.ID)
			if w.Broker.Opens(g.ID, before.Sealed) || !w.Broker.Opens(g.ID, after.Sealed) {
				t.Error("the old part counts, or the new one does not")
			}
			if r.Receipt == "" || after.RotationReceipt != r.Receipt || after.RotatedAt.IsZero() || after.Rotation != "" || !after.RevokedAt.IsZero() {
				t.Errorf("rotated: %+v", after)
			}
			if !slices.Equal(r.Sessions, []string{s.ID.String()}) || rotations(w, s.ID) != i+1 || told(t, w, s.ID, session.GrantRotated, "grant") != g.ID.String() {
				t.Errorf("told %v, %d events", r.Sessions, rotations(w, s.ID))
			}
			before = after
		}
		w.Broker.Say(et.Script(et.Calls(forecast), et.Text("done")))
		w.Broker.Serve("http:forecast", func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
			return &brokerv1.InvokeResponse{HttpStatus: 200, Body: []byte("sunny")}, nil
		})
		turn := w.Submit(s, "weather?")
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		if n := len(w.Broker.Effects()); n != 1 {
			t.Errorf("%d calls with the new part", n)
		}
		x, err := w.Engine.Explain(ctx(), w.Me(), g.ID.String())
		if err != nil || !strings.Contains(x.WaitingFor, "was renewed at") {
			t.Errorf("explained: %+v %v", x, err)
		}
		revokeGrant(t, w, g.ID)
		_, err = w.Engine.RotateGrant(ctx(), w.Me(), g.ID)
		wantCode(t, "a revoked grant", err, protocol.CodeConflict)
	})
}

// A server that dies at any step of a rotation leaves a part that counts, and the next
// one brings the rotation to its end by itself: then only the new one counts, and what
// is told of it is told once. INV-4, INV-18.
func TestRotationOverCrashes(t *testing.T) {
	for name, at := range map[string]string{"before anything": "down", "before the new part is stored": "rotate", "before it is told": "settle", "before it is over": "sign"} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *et.World, _ *et.Runner) {
				g := give(t, w, "weather-token")
				s := talked(t, w)
				before := storedGrant(t, w, g.ID)
				dying, die := context.WithCancel(ctx())
				defer die()
				w.Broker.SetDown(at == "down")
				w.Broker.OnRotation(func(step string) {
					if step == at {
						die()
					}
				})
				w.Broker.Receipt = func([]byte) (string, error) {
					if at == "sign" {
						die()
					}
					return "signed", nil
				}
				_, err := w.Engine.RotateGrant(dying, w.Me(), g.ID)
				if err == nil {
					t.Fatal("it did not die")
				}
				if at == "down" && (protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "goes on trying") || strings.Contains(err.Error(), "is renewed")) {
					t.Errorf("the broker is away: %v", err)
				}
				left := storedGrant(t, w, g.ID)
				if !w.Broker.Opens(g.ID, left.Sealed) || left.Rotation == "" {
					t.Errorf("what is stored opens nothing, or the rotation is forgotten: %+v", left)
				}
				w.Broker.OnRotation(nil)
				at = ""
				w.Restart()
				w.Broker.SetDown(false)
				w.Sleep(2 * time.Minute)
				w.Settle()
				after := storedGrant(t, w, g.ID)
				if after.Rotation != "" || after.RotatedAt.IsZero() || after.RotationReceipt == "" || rotations(w, s.ID) != 1 {
					t.Errorf("the next server did not bring it to its end once: %+v, %d events", after, rotations(w, s.ID))
				}
				if !w.Broker.Opens(g.ID, after.Sealed) || w.Broker.Opens(g.ID, before.Sealed) {
					t.Error("the old part counts, or the new one does not")
				}
			})
		})
	}
}

// What ended while it was being rotated is not rotated, and nothing of it stays owed.
func TestRotationOfWhatEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, w *et.World, id protocol.GrantID){
		"revoked":           func(t *testing.T, w *et.World, id protocol.GrantID) { revokeGrant(t, w, id) },
		"held by no broker": func(_ *testing.T, w *et.World, id protocol.GrantID) { w.Broker.Disown(id) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *et.World, _ *et.Runner) {
				g := give(t, w, "weather-token")
				w.Broker.SetDown(true)
				_, err := w.Engine.RotateGrant(ctx(), w.Me(), g.ID)
				wantCode(t, "the broker is away", err, protocol.CodeUnavailable)
				w.Broker.SetDown(false)
				end(t, w, g.ID)
				w.Sleep(2 * time.Minute)
				w.Settle()
				if left := storedGrant(t, w, g.ID); left.Rotation != "" || !left.RotatedAt.IsZero() {
					t.Errorf("left: %+v", left)
				}
				err = w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) error {
					debt, err := tx.CleanupDebt()
					if debt != 0 {
						t.Errorf("%d cleanups are owed", debt)
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// leaving is a turn whose call is about to leave.
func leaving(t *testing.T, w *et.World, call et.Call) session.Turn {
	t.Helper()
	w.Broker.Say(et.Script(et.Calls(call), et.Text("done")))
	turn := w.Submit(w.Session("assistant"), "go")
	w.Until("the call is about to leave", func() bool {
		return slices.ContainsFunc(w.Ops.Keys(), func(k string) bool { return strings.HasPrefix(k, "invoke/") })
	})
	return turn
}

func rotate(t *testing.T, w *et.World, id protocol.GrantID) {
	t.Helper()
	if _, err := w.Engine.RotateGrant(ctx(), w.Me(), id); err != nil {
		t.Fatal(err)
	}
}

// wantCall holds what became of the only call of a turn.
func wantCall(t *testing.T, w *et.World, turn session.Turn, state session.ActionState, effects, refused int) {
	t.Helper()
	wantState(t, w, turn.ID, session.Completed, "")
	if len(w.Broker.Effects()) != effects || len(w.Broker.Refused()) != refused {
		t.Errorf("%d effects, refused %v", len(w.Broker.Effects()), w.Broker.Refused())
	}
	all := w.Actions(turn.ID)
	if len(all) != 1 || all[0].State != state {
		t.Errorf("the calls: %+v", all)
	}
}

// A call whose grant was renewed after its capability was minted is refused before it
// leaves, and made again with the new part: the agent does not notice, also where the
// grant is renewed over and over while the call is made again. INV-5.
func TestRotationUnderACall(t *testing.T) {
	for name, more := range map[string]int{"once": 0, "again while it is made again": 3} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *et.World, _ *et.Runner) {
				g := give(t, w, "weather-token")
				turn := leaving(t, w, forecast)
				rotate(t, w, g.ID)
				left := more
				w.Broker.OnCall(func() {
					if left > 0 {
						left--
						rotate(t, w, g.ID)
					}
				})
				w.Settle()
				wantCall(t, w, turn, session.Succeeded, 1, max(1, more))
			})
		})
	}
}

// A call that a renewal caught, whose new part cannot be read because the store does
// not answer, is not denied for it: nothing has left, and it is made when the store is
// back. INV-4, INV-5.
func TestRotationUnderACallWithoutAStore(t *testing.T) {
	var away bool
	commit := func(commit func() error) error {
		if away {
			return errors.New("no room on the disk")
		}
		return commit()
	}
	inWorld(t, func(w *et.World, _ *et.Runner) {
		g := give(t, w, "weather-token")
		turn := leaving(t, w, forecast)
		rotate(t, w, g.ID)
		w.Broker.OnCall(func() { away = true })
		w.Ops.Step(ctx(), 0)
		away = false
		w.Broker.OnCall(nil)
		if a := w.Actions(turn.ID); len(a) != 1 || a[0].State != session.Dispatched {
			t.Fatalf("while the store is away: %+v", a)
		}
		w.Sleep(time.Minute)
		wantCall(t, w, turn, session.Succeeded, 1, 1)
	}, et.WithCommit(commit))
}

// A part that is refused and is the one that is stored is shown once; and a call whose
// grant ended while it was made again did not run. INV-5, INV-13.
func TestNoNewPartForACall(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, w *et.World, g policy.Grant){
		"the broker knows an older one": func(_ *testing.T, w *et.World, _ policy.Grant) { w.Broker.PutBack(et.Copy{}) },
		"it ended":                      func(t *testing.T, w *et.World, g policy.Grant) { rotate(t, w, g.ID); revokeGrant(t, w, g.ID) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *et.World, _ *et.Runner) {
				g, own := give(t, w, "weather-token"), give(t, w, "shop-token")
				rotate(t, w, g.ID)
				turn := leaving(t, w, forecast)
				spoil(t, w, g)
				w.Ops.Step(ctx(), 0)
				w.Settle()
				wantCall(t, w, turn, session.Denied, 0, 1)
				if now := storedGrant(t, w, own.ID); !now.RevokedAt.IsZero() {
					t.Error("the turn's own grant ended too")
				}
			})
		})
	}
}

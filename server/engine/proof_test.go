package engine_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol/canonical"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// signed is what a receipt of a revocation says.
type signed struct {
	Follows string
	Layers  []engine.Layer
}

func (s signed) gone(layer string) (gone, said bool) {
	for _, l := range s.Layers {
		if l.Name == layer {
			return l.Gone, true
		}
	}
	return false, false
}

func opened(t *testing.T, receipt string) (s signed) {
	t.Helper()
	parts := strings.Split(receipt, ".")
	if len(parts) != 3 {
		t.Fatalf("the receipt is %q", receipt)
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(payload, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// INV-13: an end that the authority could not take is signed as it was seen, and said to
// be pending. Once it is taken, by a broker that goes on or a person who revokes again, a
// second receipt shows it beside the first, which stays as it was signed.
func TestEndIsProvenLater(t *testing.T) {
	for name, again := range map[string]func(w *et.World, g policy.Grant, taken bool) error{
		"by the broker": func(w *et.World, g policy.Grant, taken bool) error {
			settled, err := w.Engine.GrantEnded(ctx(), engine.EndedGrant{ID: g.ID, Seen: time.Now(), How: "it was revoked at the broker"})
			if err == nil && settled != taken {
				err = fmt.Errorf("settled %v, where the authority has taken it: %v", settled, taken)
			}
			return err
		},
		"by a person": func(w *et.World, g policy.Grant, _ bool) error {
			_, err := w.Engine.RevokeGrant(ctx(), w.Me(), g.ID, "")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *et.World, _ *et.Runner) {
				made, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "assistant"})
				if err != nil {
					t.Fatal(err)
				}
				now := func() (g policy.Grant) {
					t.Helper()
					if err := w.Store.View(ctx(), w.Me(), func(tx *store.Tx) (err error) { g, err = tx.Grant(made.ID); return err }); err != nil {
						t.Fatal(err)
					}
					return g
				}
				w.Broker.SetPending("Vault is sealed")
				if _, err := w.Engine.RevokeGrant(ctx(), w.Me(), made.ID, "lost laptop"); err != nil {
					t.Fatal(err)
				}
				first := now()
				if gone, said := opened(t, first.Receipt).gone("authority"); gone || !said || !strings.Contains(first.Pending(), "Vault is sealed") {
					t.Errorf("pending %q, %+v", first.Pending(), opened(t, first.Receipt))
				}
				w.Sleep(time.Minute)
				if err := again(w, first, false); err != nil {
					t.Fatal(err)
				}
				if g := now(); g.Proof != "" || g.Receipt != first.Receipt || g.Pending() == "" {
					t.Errorf("while it is pending: %+v", g)
				}
				w.Broker.SetPending("")
				for range 2 {
					if err := again(w, first, true); err != nil {
						t.Fatal(err)
					}
				}
				g := now()
				if g.Receipt != first.Receipt || g.Proof == "" || g.ProvenAt.IsZero() || g.Pending() != "" || g.RevokedWhy != "lost laptop" {
					t.Errorf("proven: %+v", g)
				}
				later := opened(t, g.Proof)
				if gone, _ := later.gone("authority"); !gone || later.Follows != canonical.Digest([]byte(first.Receipt)) {
					t.Errorf("the later receipt says %+v", later)
				}
			})
		})
	}
}

// What is seen to be gone at once needs no second receipt: the first has a row of the
// authority.
func TestFirstReceiptShowsTheAuthority(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		g, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "assistant"})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			rev, err := w.Engine.RevokeGrant(ctx(), w.Me(), g.ID, "")
			if err != nil {
				t.Fatal(err)
			}
			if gone, said := opened(t, rev.Receipt).gone("authority"); !gone || !said {
				t.Errorf("%+v", rev.Layers)
			}
		}
		if err := w.Store.View(ctx(), w.Me(), func(tx *store.Tx) (err error) { g, err = tx.Grant(g.ID); return err }); err != nil {
			t.Fatal(err)
		}
		if g.Pending() != "" || g.Proof != "" {
			t.Errorf("pending %q, proof %q", g.Pending(), g.Proof)
		}
	})
}

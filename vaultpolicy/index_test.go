package vaultpolicy

import (
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
)

// edit writes an entry of the index anew, as whoever may write there does.
func (w *world) edit(g authority.Grant, change map[string]any) {
	w.fake.with(func() {
		versions := w.fake.kv[w.fake.key(g)]
		edited := maps.Clone(versions[len(versions)-1])
		maps.Copy(edited, change)
		w.fake.kv[w.fake.key(g)] = append(versions, edited)
	})
}

func (w *world) entry(g authority.Grant) (e map[string]any) {
	w.fake.with(func() {
		if versions := w.fake.kv[w.fake.key(g)]; len(versions) > 0 {
			e = versions[len(versions)-1]
		}
	})
	return e
}

// lives reports whether a grant has its token, and that token's accessor.
func (w *world) lives(g authority.Grant) (accessor string, lives bool) {
	w.fake.with(func() {
		if x := w.fake.tokens[w.fake.tokenOf(g)]; x != nil {
			accessor, lives = x.accessor, true
		}
	})
	return accessor, lives
}

// Whoever writes another accessor into an entry ends that grant, and no token but the
// grant's own: neither while the broker runs nor while it is away. INV-13.
func TestForeignAccessor(t *testing.T) {
	const found, lost = "ended by what the index holds sealed", "lives until its period ends"
	for name, c := range map[string]struct {
		change   map[string]any // beside the accessor
		nobody   bool           // the accessor is nobody's
		away     bool           // it is changed while no broker runs
		how, log string
		survives bool // the grant's own token cannot be found
	}{
		"while it runs":                     {how: "to name another token"},
		"with its state":                    {change: map[string]any{"state": "off"}, how: "index says so"},
		"with an end":                       {change: map[string]any{"state": "revoked", "revoked": "2020-01-01T00:00:00Z"}, how: "revoked at another broker"},
		"with its content":                  {change: map[string]any{"agent": "other"}, how: "changed by hand"},
		"so that it is none":                {change: map[string]any{"tenant": ""}, how: "changed by hand"},
		"while it is away":                  {away: true, how: "something else", log: found},
		"while it is away, with its state":  {away: true, change: map[string]any{"state": "off"}, how: "index says so", log: found},
		"while it is away, to be nobody's":  {away: true, nobody: true, how: "revoked in the server", log: found},
		"while it is away, with an end":     {away: true, change: map[string]any{"state": "revoked", "revoked": "2020-01-01T00:00:00Z"}, how: "it was revoked", log: found},
		"while it is away, with the sealed": {away: true, change: map[string]any{"sealed": "AQAAAAEAAAA="}, how: "something else", log: lost, survives: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var log lines
				w.log = slog.New(slog.NewTextHandler(&log, nil))
				w.restart(t, w.client)
				g, sealed := w.grant(t)
				victim, victimSealed := w.grant(t)
				w.use(t.Context(), 10*time.Second, g, victim)
				own, _ := w.lives(g)
				accessor, _ := w.lives(victim)
				if c.nobody {
					accessor = "acc-nobody"
				}
				if c.away {
					w.stop()
				}
				w.edit(g, map[string]any{"accessor": accessor})
				w.edit(g, c.change)
				if c.away {
					w.restart(t, w.client)
				}
				errs := w.use(t.Context(), sweep+5*time.Second, g, victim)
				codeIs(t, "the grant", errs[0], protocol.CodePermissionDenied)
				codeIs(t, "the other", errs[1], "")
				if _, err := w.Mint(t.Context(), authoritytest.Use(victim, victimSealed, "weather")); err != nil {
					t.Error("the other", err)
				}
				_, err := w.Mint(t.Context(), authoritytest.Use(g, sealed, "weather"))
				codeIs(t, "mint", err, protocol.CodePermissionDenied)
				if _, lives := w.lives(g); lives != c.survives {
					t.Errorf("the grant's own token lives: %t", lives)
				}
				e := w.entry(g)
				if e["state"] != stateRevoked {
					t.Errorf("the index says %v", e)
				}
				if e["sealed"] != nil {
					t.Error("the entry of a grant that ended holds its token")
				}
				if !c.away && e["accessor"] != own {
					t.Errorf("the index does not name the token that ended: %v", e["accessor"])
				}
				if told := w.told(); len(told) != 1 || told[0].Grant != g.ID || !strings.Contains(told[0].How, c.how) {
					t.Errorf("told %+v", told)
				}
				if n := strings.Count(log.String(), c.log); c.log != "" && n != 1 {
					t.Errorf("%q stands %d times in the log:\n%s", c.log, n, log.String())
				}
			})
		})
	}
}

// An entry of a grant that ended long ago is forgotten, and stays so; a living grant
// whose entry claims such an end is ended first.
func TestOldEntriesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		longAgo := map[string]any{"state": stateRevoked, "revoked": stamp(time.Now().Add(-revokedTTL - time.Hour))}
		old, _ := w.grant(t)
		recent, _ := w.grant(t)
		away, _ := w.grant(t)
		forged, _ := w.grant(t)
		for _, g := range []authority.Grant{old, recent, away} {
			if _, err := w.RevokeGrant(t.Context(), g.ID); err != nil {
				t.Fatal(err)
			}
		}
		forgotten := func(g authority.Grant) {
			t.Helper()
			codeIs(t, "asked for", w.use(t.Context(), 10*time.Second, g)[0], protocol.CodePermissionDenied)
			if list, err := w.Grants(t.Context(), g.Tenant); err != nil || len(list) != 0 || w.entry(g) != nil {
				t.Errorf("%+v %v, the index has %v", list, err, w.entry(g))
			}
		}
		w.edit(old, longAgo)
		w.edit(forged, longAgo)
		codeIs(t, "forged", w.use(t.Context(), sweep+5*time.Second, forged)[0], protocol.CodePermissionDenied)
		if _, lives := w.lives(forged); lives {
			t.Error("a living grant was forgotten with its token")
		}
		forgotten(old)
		if list, err := w.Grants(t.Context(), recent.Tenant); err != nil || len(list) != 1 || list[0].RevokedAt.IsZero() {
			t.Errorf("the recent one: %+v %v", list, err)
		}
		w.stop()
		w.edit(away, longAgo)
		w.restart(t, w.client)
		forgotten(away)
		told := ""
		for _, e := range w.told() {
			if e.Grant == forged.ID {
				told += e.How
			}
		}
		if told == "" {
			t.Error("nobody was told of the forged end")
		}
	})
}

// An end that is written into the entry of a grant in use, or that the entry's deletion
// is, is seen within two polls without any wake-up; an entry of a grant that nobody uses
// is read with all the others.
func TestEntryIsReadWithTheLookUp(t *testing.T) {
	for name, end := range map[string]func(w *world, g authority.Grant){
		"deleted": func(w *world, g authority.Grant) { w.fake.with(func() { delete(w.fake.kv, w.fake.key(g)) }) },
		"state":   func(w *world, g authority.Grant) { w.edit(g, map[string]any{"state": "off"}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				g, _ := w.grant(t)
				other, _ := w.grant(t)
				w.use(t.Context(), 10*time.Second, g, other)
				end(w, g)
				errs := w.use(t.Context(), 2*defaultPoll, g, other)
				codeIs(t, "the grant", errs[0], protocol.CodePermissionDenied)
				codeIs(t, "the other", errs[1], "")
				time.Sleep(inUse + sweep)
				var read int
				w.fake.with(func() { read = w.fake.asked[strings.Replace(w.fake.key(other), "/", "/data/", 1)] })
				time.Sleep(2 * sweep)
				w.fake.with(func() { read = w.fake.asked[strings.Replace(w.fake.key(other), "/", "/data/", 1)] - read })
				if read < 1 || read > 3 {
					t.Errorf("the entry of a grant that nobody uses was read %d times in a minute", read)
				}
			})
		})
	}
}

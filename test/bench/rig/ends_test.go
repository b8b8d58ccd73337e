//go:build linux

package rig_test

import (
	"os"
	"testing"
	"time"

	"bivouac/test/bench/rig"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

func TestMain(m *testing.M) { os.Exit(vaulttest.Main(m)) }

// The short form of the measurement on a real server, with an audit source and by
// polling alone: every grant that an admin revokes loses all of its streams and gets no
// credential, and those of the others go on. How fast is not judged here. INV-13.
func TestEnds(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Start(t, p)
		for name, audit := range map[string]string{"audit": s.AuditFile(), "polling": ""} {
			t.Run(name, func(t *testing.T) {
				var x *rig.Site
				at := rig.Server{Address: s.Address(), CAFile: s.CAFile(), RootToken: s.RootToken(), AuditFile: audit}
				r, err := rig.StartOn(t.Context(), t.TempDir(), rig.On(at, func(made *rig.Site) { x = made }))
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					x.Close()
					if err := r.Close(); err != nil {
						t.Error(err)
					}
				}()
				tokens, persons, err := x.Count(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				out, err := r.Ends(t.Context(), x, rig.Revocations{Grants: 8, Streams: 24, Rounds: 2, InRound: 2, Over: 100 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				if len(out.Streams) != 12 || len(out.LastRequest) != 4 || out.Tried != 2 {
					t.Errorf("measured %+v", out)
				}
				if out.Minted != 0 {
					t.Errorf("%d credentials were minted under revoked grants", out.Minted)
				}
				if out.Others != 6 || out.Kept != out.Others || out.Lost != nil {
					t.Errorf("%d of %d streams of others are open; one ended: %v", out.Kept, out.Others, out.Lost)
				}
				moreTokens, morePersons, err := x.Count(t.Context())
				if err != nil || moreTokens == tokens || morePersons == persons {
					t.Errorf("%d tokens and %d persons before, %d and %d after making grants: %v", tokens, persons, moreTokens, morePersons, err)
				}
			})
		}
	})
}

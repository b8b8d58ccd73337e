package engine

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/capability"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// INV-9, INV-13: a revocation that the store refuses moves nothing, not for a
// moment; one that it takes counts before the commit, and one whose commit has an
// unknown outcome counts on.
func TestFloorsAreRaisedByRight(t *testing.T) {
	s, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "state.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e := &Engine{cfg: Config{Store: s, Log: slog.New(slog.DiscardHandler)}, floors: newFloors()}
	refused := protocol.Errorf(protocol.CodeNotFound, "no such principal")
	for _, c := range []struct {
		name    string
		refuse  error
		counted bool
	}{{"refused", refused, false}, {"taken", nil, true}} {
		id := protocol.PrincipalID("prn_" + c.name)
		counts := func() bool { return e.floors.covers(capability.Claims{Principal: id}) != nil }
		raised := raising{floors: e.floors, floor: policy.Floor{Kind: policy.FloorPrincipal, ID: id.String(), Minimum: noFloor}}
		err := raised.settle(s.Update(t.Context(), store.AsLoop("test"), func(tx *store.Tx) error {
			if c.refuse != nil {
				if counts() {
					t.Errorf("%s: it counts before the caller's right is proven", c.name)
				}
				return c.refuse
			}
			if err := raised.add(tx); err != nil {
				return err
			}
			if !counts() {
				t.Errorf("%s: it does not count before the commit", c.name)
			}
			return nil
		}))
		if !errors.Is(err, c.refuse) || counts() != c.counted {
			t.Errorf("%s: %v, counts afterwards: %t", c.name, err, counts())
		}
	}
	for code, counted := range map[protocol.Code]bool{protocol.CodeOutcomeUnknown: true, protocol.CodeUnavailable: false} {
		id := protocol.PrincipalID("prn_" + string(code))
		raised := raising{floors: e.floors, floor: policy.Floor{Kind: policy.FloorPrincipal, ID: id.String(), Minimum: noFloor}}
		_ = s.Update(t.Context(), store.AsLoop("test"), raised.add)
		_ = raised.settle(protocol.Errorf(code, "the commit"))
		if got := e.floors.covers(capability.Claims{Principal: id}) != nil; got != counted {
			t.Errorf("after %s it counts: %t", code, got)
		}
	}
}

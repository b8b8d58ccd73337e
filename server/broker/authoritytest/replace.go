package authoritytest

import (
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// replaced: a value takes the place of the one that was read, durably, and never of one
// that somebody stored since.
func replaced(t *testing.T, f Fixture) {
	g := NewGrant("weather")
	put(t, f, g.Tenant, "weather")
	sealed := create(t, f, g)
	of := func(text string) secret.Value {
		v, err := secret.New(text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	held := func(what, want string) {
		t.Helper()
		if v, err := f.Mint(t.Context(), Use(g, sealed, "weather")); err != nil || !v.Equal(want) {
			t.Errorf("%s: another value, %v", what, err)
		}
	}
	replace := func(was, is string) error {
		return f.ReplaceCredential(t.Context(), g.Tenant, "weather", of(was), of(is))
	}
	held("at first", Value)
	refused(t, "in the place of another", replace("never-stored", "second-value"), protocol.CodeConflict)
	held("after a refusal", Value)
	for _, next := range []struct{ was, is string }{{Value, "second-value"}, {"second-value", "third-value"}, {"second-value", "third-value"}} {
		if err := replace(next.was, next.is); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, "with one that was replaced", replace(Value, "late-value"), protocol.CodeConflict)
	f.reopen(t)
	held("after a restart", "third-value")
	put(t, f, g.Tenant, "weather") // a person stores it anew
	refused(t, "over what a person stored", replace("third-value", "fourth-value"), protocol.CodeConflict)
	held("a person's", Value)
	if err := f.DeleteCredential(t.Context(), g.Tenant, "weather"); err != nil {
		t.Fatal(err)
	}
	if err := replace(Value, "fifth-value"); protocol.CodeOf(err) != protocol.CodeConflict && protocol.CodeOf(err) != protocol.CodeNotFound {
		t.Errorf("of a deleted one: %v", err)
	}
	if _, err := f.Mint(t.Context(), Use(g, sealed, "weather")); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("a deleted one came back: %v", err)
	}
}

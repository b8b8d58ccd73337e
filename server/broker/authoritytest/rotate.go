package authoritytest

import (
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
)

const firstRotation, nextRotation = authority.Rotation("cln_first"), authority.Rotation("cln_next")

// rotatedRefusal: an older secret part is refused, and told apart from a grant that
// ended.
func rotatedRefusal(t *testing.T, f Fixture, what string, u authority.Use) {
	t.Helper()
	_, err := f.Mint(t.Context(), u)
	refused(t, what, err, protocol.CodePermissionDenied)
	if protocol.DetailOf(err) != protocol.DetailGrantRotated {
		t.Errorf("%s: it does not say that the grant was renewed: %v", what, err)
	}
}

func rotate(t *testing.T, f Fixture, id protocol.GrantID, r authority.Rotation) []byte {
	t.Helper()
	sealed, err := f.RotateGrant(t.Context(), id, r)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func settleRotation(t *testing.T, f Fixture, id protocol.GrantID, r authority.Rotation) {
	t.Helper()
	if err := f.SettleRotation(t.Context(), id, r); err != nil {
		t.Fatal(err)
	}
}

// rotated: at every moment of a rotation one secret part counts, over restarts too;
// after it the new one alone does. The grant lives on, and no other is touched.
func rotated(t *testing.T, f Fixture) {
	g, other := NewGrant("weather"), NewGrant("weather")
	put(t, f, g.Tenant, "weather")
	put(t, f, other.Tenant, "weather")
	old, others := create(t, f, g), create(t, f, other)
	var first []byte
	for _, name := range []authority.Rotation{firstRotation, nextRotation} {
		next := rotate(t, f, g.ID, name)
		for range 2 { // a crash after the new part is made
			minted(t, f, Use(g, old, "weather"))
			minted(t, f, Use(g, next, "weather"))
			f.reopen(t)
		}
		known(t, f, g.ID)
		minted(t, f, Use(g, rotate(t, f, g.ID, name), "weather")) // asked again
		settleRotation(t, f, g.ID, name)
		for range 2 { // a crash after the old part is ended
			minted(t, f, Use(g, next, "weather"))
			rotatedRefusal(t, f, "the old part", Use(g, old, "weather"))
			if err := settled(t, f, g.ID); err != nil {
				t.Errorf("the grant is not alive: %v", err)
			}
			f.reopen(t)
		}
		known(t, f, g.ID)
		settleRotation(t, f, g.ID, name)                          // told again
		minted(t, f, Use(g, rotate(t, f, g.ID, name), "weather")) // and asked again
		minted(t, f, Use(g, create(t, f, g), "weather"))          // the same grant is the new part
		if told := f.watch.of(g.ID); len(told) != 0 {
			t.Errorf("a renewed grant was told as ended: %+v", told)
		}
		if old = next; name == firstRotation {
			first = next
		}
	}
	minted(t, f, Use(other, others, "weather"))
	for range 2 { // a request of the first one that was held up on its way
		_, err := f.RotateGrant(t.Context(), g.ID, firstRotation)
		refused(t, "a rotation that is over", err, protocol.CodeConflict)
		refused(t, "settling it", f.SettleRotation(t.Context(), g.ID, firstRotation), protocol.CodeConflict)
		rotatedRefusal(t, f, "its part", Use(g, first, "weather"))
		minted(t, f, Use(g, old, "weather"))
		f.reopen(t)
		known(t, f, g.ID)
	}
	list, err := f.Grants(t.Context(), g.Tenant)
	if err != nil || len(list) != 1 || !list[0].SameAs(g) || !list[0].RevokedAt.IsZero() {
		t.Errorf("%+v %v", list, err)
	}
}

// known waits until an authority that has just begun knows its grants.
func known(t *testing.T, f Fixture, id protocol.GrantID) {
	t.Helper()
	if err := settled(t, f, id); err != nil {
		t.Fatal(err)
	}
	until(t, "all grants are known", func() bool {
		_, err := f.Grants(t.Context(), NewGrant().Tenant)
		return err == nil
	})
}

// notRotated: what may not be rotated is refused, changes nothing, and goes through as
// soon as it is right. A grant that ends in the middle ends with both parts. INV-13.
func notRotated(t *testing.T, f Fixture) {
	g := NewGrant("weather")
	put(t, f, g.Tenant, "weather")
	sealed := create(t, f, g)
	known(t, f, g.ID)
	_, err := f.RotateGrant(t.Context(), NewGrant().ID, firstRotation)
	refused(t, "an unknown grant", err, protocol.CodeNotFound)
	_, err = f.RotateGrant(t.Context(), g.ID, "X")
	refused(t, "a name that is none", err, protocol.CodeInvalidArgument)
	refused(t, "what was never begun", f.SettleRotation(t.Context(), g.ID, firstRotation), protocol.CodeConflict)
	minted(t, f, Use(g, sealed, "weather"))

	lost := rotate(t, f, g.ID, firstRotation)
	next := rotate(t, f, g.ID, nextRotation) // another takes its place
	rotatedRefusal(t, f, "one that was given up", Use(g, lost, "weather"))
	refused(t, "settling it", f.SettleRotation(t.Context(), g.ID, firstRotation), protocol.CodeConflict)
	minted(t, f, Use(g, sealed, "weather"))
	minted(t, f, Use(g, next, "weather"))
	_, err = f.RotateGrant(t.Context(), g.ID, firstRotation)
	refused(t, "beginning it again", err, protocol.CodeConflict)
	minted(t, f, Use(g, next, "weather"))
	u := Use(g, next, "weather")
	u.Principal = NewGrant().Principal
	_, err = f.Mint(t.Context(), u)
	refused(t, "the new part in another's name", err, protocol.CodePermissionDenied)

	if _, err := f.RevokeGrant(t.Context(), g.ID); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, part := range [][]byte{sealed, next} {
			_, err := f.Mint(t.Context(), Use(g, part, "weather"))
			refused(t, "mint after revocation", err, protocol.CodePermissionDenied)
		}
		_, err := f.RotateGrant(t.Context(), g.ID, firstRotation)
		refused(t, "rotating what was revoked", err, protocol.CodeConflict)
		refused(t, "settling what was revoked", f.SettleRotation(t.Context(), g.ID, nextRotation), protocol.CodeConflict)
		f.reopen(t)
		refused(t, "alive after a restart", settled(t, f, g.ID), protocol.CodePermissionDenied)
	}
}

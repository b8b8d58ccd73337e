package vaultpolicy

import (
	"time"

	"bivouac/vaultpolicy/client"
)

// term is what a look-up says of a token's time.
type term struct {
	ends time.Time // by the server's clock
	over bool      // and that is not in the future
	// due is when its last renewal, or its making, had it end; zero: it does not say.
	due time.Time
}

// termOf a look-up's answer.
func termOf(a client.Answer) term {
	x := term{ends: client.Time(a.Data["expire_time"]), over: client.Seconds(a.Data["ttl"]) <= 0}
	since := client.Time(a.Data["last_renewal"])
	if since.IsZero() {
		since = client.Time(a.Data["issue_time"])
	}
	if had := client.Seconds(a.Data["creation_ttl"]); had > 0 && !since.IsZero() {
		x.due = since.Add(had)
	}
	return x
}

// sameEnd is how far apart two instants of one end may be: servers round.
const sameEnd = time.Second

// early reports a token that was revoked, and of which that is not over yet. A server that
// revokes many, as by prefix, moves the end of each to now and ends them one after the
// other; who looks in between sees one without any time left. Its time was not over where
// an earlier look-up saw a later end (known), unless the server was put back to a state in
// which it had this one; where there was no look-up, by when it was last renewed and the
// time that it had then.
func (x term) early(known time.Time) bool {
	switch {
	case !x.over || x.ends.IsZero():
		return false
	case known.IsZero():
		return x.due.Sub(x.ends) > sameEnd
	}
	return known.Sub(x.ends) > sameEnd && (x.due.IsZero() || x.due.Sub(x.ends).Abs() > sameEnd)
}

// how a token ended that the server does not know any more.
func how(e entry) string {
	switch {
	case e.cut, e.expires.IsZero(), time.Until(e.expires) >= sameEnd:
		return "its token was revoked in the server"
	case e.fixed > 0:
		return "its token's time was over, which had an end of its own"
	}
	return "its token's time was over, because no broker renewed it"
}

package vaultpolicy

import (
	"time"

	"bivouac/server/broker/authority"
)

const (
	// inUse is how long after a question a grant is looked up every poll.
	inUse = 60 * time.Second
	// sweep is how often grants that nobody uses are looked up, and the index is read.
	sweep = 30 * time.Second
	// revokedTTL is how long a grant that ended stays listed.
	revokedTTL = 90 * 24 * time.Hour
)

// entry is one grant in memory. A grant that has RevokedAt ended; nothing brings it
// back.
type entry struct {
	grant    authority.Grant
	accessor string
	how      string // it ended

	inForce   authority.Rotation // whose secret part is in force; empty: the first
	pending   secretPart         // that is made and not in force
	renewedAt time.Time          // when the token took another's place here

	// Readings of the table's clock; zero: never.
	asked  time.Duration // last question about it
	used   time.Duration // since when questions come without a pause
	proven time.Duration // when the last look-up was sent that found it alive
	tried  time.Duration // last look-up, whatever it found
	fixed  time.Duration // last renewal, where it did not move the token's end
	read   time.Duration // last reading of its entry for itself

	entity  string
	expires time.Time // as of the last look-up
	cut     bool      // that saw a token whose end was moved to now: it was revoked

	own        bool // the accessor is known to be of this grant's token
	unfinished bool // ended here, perhaps not yet in the server
	settled    bool // what can be done about its token was done
	told       bool // somebody was told that it ended
	reopened   int  // how often the server has lost its end
}

func overdue(e *entry) bool { return !e.expires.IsZero() && !time.Now().Before(e.expires) }

func copies(all []*entry) []entry {
	out := make([]entry, len(all))
	for i, e := range all {
		out[i] = *e
	}
	return out
}

// Package leasetest has the clock of leases in virtual time, for tests. It refuses to
// count the time that a machine sleeps, so that no program may use it.
package leasetest

import (
	"time"

	"bivouac/edge/lease"
)

// Monotonic counts from now by Go's clock, which is virtual inside a testing/synctest
// bubble.
func Monotonic() lease.Elapsed {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

//go:build !linux

package lease

import "time"

var start = time.Now()

// Boottime is the monotonic clock; on macOS and Windows it counts no suspend, so
// the wall clock moves it forward when that is ahead.
func Boottime() time.Duration {
	mono := time.Since(start)
	if wall := time.Now().Round(0).Sub(start.Round(0)); wall > mono {
		return wall
	}
	return mono
}

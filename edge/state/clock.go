package state

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"
)

// ClockTolerance is how far this machine's clock may be off before dates are judged
// by the server's.
const ClockTolerance = time.Minute

// clock is what the server said of this machine's clock.
type clock struct {
	// BehindMs is how far ours is behind the server's; negative: ahead.
	BehindMs int64 `json:"behind_ms"`
}

// ClockBehind is how far this machine's clock is behind its server's; zero when it
// is right as far as we know.
func (d *Dir) ClockBehind() time.Duration {
	var c clock
	b, err := os.ReadFile(d.file("clock.json"))
	if err != nil || json.Unmarshal(b, &c) != nil {
		return 0
	}
	return time.Duration(c.BehindMs) * time.Millisecond
}

// Now is the time by which this runner's processes judge the dates of
// certificates: the machine's own, unless it is known to be wrong. Nothing else
// depends on it: leases count elapsed time (INV-20).
func (d *Dir) Now() time.Time { return time.Now().Add(d.ClockBehind()) }

// SaveClock remembers that the server's time was theirs when ours was now. It
// reports by how much the clock is off when that is more than the tolerance.
func (d *Dir) SaveClock(theirs, ours time.Time) (behind time.Duration, err error) {
	behind = theirs.Sub(ours)
	if behind.Abs() <= ClockTolerance {
		if err := os.Remove(d.file("clock.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		return 0, nil
	}
	if (behind - d.ClockBehind()).Abs() <= ClockTolerance/2 {
		return behind, nil // known, and only the network's noise differs
	}
	b, err := json.Marshal(clock{BehindMs: behind.Milliseconds()})
	if err != nil {
		return behind, err
	}
	return behind, d.write("clock.json", append(b, '\n'), 0o600)
}

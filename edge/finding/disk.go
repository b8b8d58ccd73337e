package finding

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"time"
)

// Limits of free space.
const (
	lowBytes   = 1 << 30   // below it a warning
	emptyBytes = 128 << 20 // below it a problem: what must be durable soon is not
	soon       = 7 * 24 * time.Hour
)

// Disk is how full the disk of a directory is, and how fast the directory grows.
type Disk struct {
	Path string
	// Holds names what is in it, such as "journal and attempts".
	Holds string
	// Since is when it was empty; zero: not known, and nothing is forecast.
	Since time.Time
	// Low says what is refused when little is left, and from when on: the reader has
	// seen that something still works.
	Low string
	// Mend is the command that makes room.
	Mend string
	// FreeFunc reads a path's free and whole bytes; nil asks the system.
	FreeFunc func(path string) (free, whole uint64, err error)
}

// Disk checks the space of a directory, and forecasts when it is used up if the
// directory goes on as it did.
func (r *Report) Disk(d Disk) {
	if d.FreeFunc == nil {
		d.FreeFunc = free
	}
	left, whole, err := d.FreeFunc(d.Path)
	if err != nil {
		r.Warn("disk", fmt.Sprintf("the space of %s cannot be measured: %v", d.Path, err), "a full disk stops all work at once", "df -h "+d.Path)
		return
	}
	used := sizeOf(d.Path)
	state := fmt.Sprintf("%s of %s free; %s (%s) holds %s", size(left), size(whole), d.Path, d.Holds, size(used))
	full, known := forecast(left, used, time.Since(d.Since), !d.Since.IsZero())
	if known {
		state += ", full in about " + days(full) + " at this rate"
	}
	switch {
	case left < emptyBytes:
		r.Bad("disk", state, d.Low, d.Mend)
	case left < lowBytes, known && full < soon:
		r.Warn("disk", state, d.Low, d.Mend)
	default:
		r.Fine("disk", "%s", state)
	}
}

// forecast is how long the free bytes last when a directory that took age to get
// to its size goes on so. Young or small ones say nothing.
func forecast(left, used uint64, age time.Duration, known bool) (time.Duration, bool) {
	if !known || age < time.Hour || used < 1<<20 {
		return 0, false
	}
	last := float64(left) / float64(used) * age.Hours()
	if last > 10*365*24 {
		return 0, false
	}
	return time.Duration(last * float64(time.Hour)), true
}

func sizeOf(dir string) (n uint64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error { // what cannot be read is not counted
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				n += uint64(info.Size())
			}
		}
		return nil
	})
	return n
}

func size(n uint64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

func days(d time.Duration) string {
	if d < 48*time.Hour {
		return fmt.Sprintf("%.0f hours", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

package finding

import (
	"fmt"
	"time"
)

// skewTolerance is what clocks of machines may differ by.
const skewTolerance = 5 * time.Second

// Clock compares this machine's clock with another's. seen is what the other's
// said, around the instant ours; round is how long the asking took.
func (r *Report) Clock(whose string, seen, ours time.Time, round time.Duration) {
	skew := seen.Sub(ours).Truncate(time.Second)
	switch off := skew.Abs(); {
	case off <= skewTolerance+round:
		r.Fine("clock", "as that of %s", whose)
	case off < time.Hour:
		r.Warn("clock", fmt.Sprintf("this clock is %s than that of %s", ahead(skew), whose), "times in records and the life of certificates are judged by it", "timedatectl set-ntp true")
	default:
		r.Bad("clock", fmt.Sprintf("this clock is %s than that of %s", ahead(skew), whose), "certificates live for a day: a clock that is hours off refuses good ones", "timedatectl set-ntp true")
	}
}

func ahead(skew time.Duration) string {
	if skew > 0 {
		return skew.String() + " slower"
	}
	return (-skew).String() + " faster"
}

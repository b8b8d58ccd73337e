package state

import (
	"encoding/json"
	"os"
	"time"

	"bivouac/edge/durable"
)

// Ended is why a daemon ended by itself, although it may be started again.
type Ended struct {
	At  time.Time `json:"at"`
	Why string    `json:"why"`
}

func (e Ended) String() string {
	return "bivouac-edge ended at " + e.At.UTC().Format(time.RFC3339) + ": " + e.Why
}

// endedFor is how long that is said: whoever looks after this machine has seen it by
// then, or it has happened again.
const endedFor = 24 * time.Hour

// SaveEnded keeps it for who asks. It does not wait for the disk, which may be what
// failed.
func (d *Dir) SaveEnded(e Ended) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return durable.Swap(d.file("ended.json"), b, 0o600)
}

// Ended is the last end of that kind within a day.
func (d *Dir) Ended() (e Ended, ok bool) {
	b, err := os.ReadFile(d.file("ended.json"))
	if err != nil || json.Unmarshal(b, &e) != nil || time.Since(e.At) > endedFor {
		return Ended{}, false
	}
	return e, true
}

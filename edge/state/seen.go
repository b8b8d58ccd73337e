package state

import (
	"encoding/json"
	"os"

	"bivouac/edge/sandbox"
)

// seen is one observation of the sandbox. It counts for one start of the machine
// and one version of the program.
type seen struct {
	BootID  string         `json:"boot_id"`
	Version string         `json:"version"`
	Report  sandbox.Report `json:"report"`
}

// SaveSeen keeps what a sandbox was seen to enforce.
func (d *Dir) SaveSeen(bootID, version string, r sandbox.Report) error {
	b, err := json.Marshal(seen{bootID, version, r})
	if err != nil {
		return err
	}
	return d.write("sandbox.json", b, 0o600)
}

// Seen is the last observation since the machine started; ok is false when there
// is none, or when the system does not name its starts.
func (d *Dir) Seen(bootID, version string) (r sandbox.Report, ok bool) {
	var s seen
	b, err := os.ReadFile(d.file("sandbox.json"))
	if err != nil || bootID == "" || json.Unmarshal(b, &s) != nil {
		return sandbox.Report{}, false
	}
	return s.Report, s.BootID == bootID && s.Version == version
}

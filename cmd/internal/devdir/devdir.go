// Package devdir knows where bivouac dev keeps its deployment, and on which
// addresses, so that the doctors of server and broker look at what runs and not at
// an empty place. It guarantees that what a person names wins over what it finds. It
// refuses to write anything: the directory is bivouac dev's.
package devdir

import (
	"encoding/json"
	"os"
	"path/filepath"

	"bivouac/edge/durable"
)

// AddressFile in the directory has the addresses of the last start, by flag.
const AddressFile = "addresses.json"

// Default is where bivouac dev keeps its state when nobody says otherwise.
func Default() string { return durable.StateDir("bivouac/dev", ".bivouac-dev") }

// Part finds the directory of one part, "server" or "broker": data, unless nothing
// is there, nobody named it, and bivouac dev has one.
func Part(data, part string, named bool) string {
	own := filepath.Join(Default(), part)
	if _, err := os.Stat(data); named || err == nil {
		return data
	}
	if _, err := os.Stat(own); err != nil {
		return data
	}
	return own
}

// Addresses of the deployment that data is a part of: public, runner, broker and
// model. It is nil where data is no part of bivouac dev's.
func Addresses(data string) map[string]string {
	b, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Clean(data)), AddressFile))
	var all map[string]string
	if err != nil || json.Unmarshal(b, &all) != nil {
		return nil
	}
	return all
}

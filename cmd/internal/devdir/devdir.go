// Package devdir knows where bivouac dev keeps its deployment, and on which
// addresses, so that doctors, backups and remedies are about what is there and not
// about an empty place. It guarantees that what a person names wins over what it finds. It
// refuses to write anything: the directory is bivouac dev's.
package devdir

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
)

// AddressFile in the directory has the addresses of the last start, by flag.
const AddressFile = "addresses.json"

// Default is where bivouac dev keeps its state when nobody says otherwise.
func Default() string { return durable.StateDir("bivouac/dev", ".bivouac-dev") }

// Own is where a part that runs by itself keeps its state when nobody says otherwise.
func Own(part string) string { return durable.StateDir("bivouac/"+part, "bivouac-"+part) }

// Part finds the directory of one part, "server" or "broker": data, unless nothing
// is there, nobody named it, and bivouac dev has one.
func Part(data, part string, named bool) string {
	dev := filepath.Join(Default(), part)
	if named || holds(data) || !holds(dev) {
		return data
	}
	return dev
}

// Deployments says which are on this machine: server or broker by themselves, and
// those of bivouac dev. One that lost its server's directory is still one: a restore
// is to find it.
func Deployments() (own, dev bool) {
	for _, part := range []string{"server", "broker"} {
		own = own || holds(Own(part))
		dev = dev || holds(filepath.Join(Default(), part))
	}
	return own, dev
}

// Beside is the directory of a part in the deployment that data is a part of; empty
// where it has none there.
func Beside(data, part string) string {
	dir := filepath.Join(filepath.Dir(filepath.Clean(data)), part)
	if !holds(dir) {
		return ""
	}
	return dir
}

// ServerPart refuses a directory that has a whole deployment in it where the server's own
// is meant: nobody reads what is written beside that.
func ServerPart(data string) error {
	whole := holds(filepath.Join(data, "server")) && holds(filepath.Join(data, "broker"))
	if _, err := os.Stat(filepath.Join(data, AddressFile)); err != nil && !whole {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "%s holds a whole deployment, and the server's state is in a directory of it: name that with --data %s",
		data, filepath.Join(data, "server"))
}

// holds says that something is in a directory. What cannot be looked into counts:
// whoever opens it then says why not.
func holds(dir string) bool {
	entries, err := os.ReadDir(dir)
	return len(entries) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// Command that starts the deployment in a directory again, at the addresses of its last
// start.
func Command(dir string) string {
	return CommandAt(dir, Addresses(filepath.Join(dir, "server")))
}

// CommandAt is Command for addresses by flag; one that is not there is the usual one.
func CommandAt(dir string, kept map[string]string) string {
	words := []string{"bivouac", "dev"}
	if dir = filepath.Clean(dir); dir != Default() {
		words = append(words, "--data", dir)
	}
	for _, a := range []struct{ flag, usual string }{{"public", "127.0.0.1:7400"}, {"runner", "127.0.0.1:7401"}, {"broker", "127.0.0.1:7402"}, {"model", "127.0.0.1:7403"}} {
		if at := kept[a.flag]; at != "" && at != a.usual {
			words = append(words, "--"+a.flag, at)
		}
	}
	for i, w := range words {
		words[i] = shellword.Quote(w)
	}
	return strings.Join(words, " ")
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

// Package refused owns the sentence with which a path is refused, and the entry
// that would allow it. The sentence is short, because a model reads it; Entry is
// for the person who decides.
//
// It guarantees that Parse reads what Sentence wrote, and that a mending is one
// exact pair: never a wildcard, and never a second entry for a destination that
// has one, which would deny it. It refuses to mend what an entry denies outright:
// somebody wrote that. Test it with go test alone.
package refused

import (
	"fmt"
	"regexp"
	"strings"
)

// NoEntry is the reason when no entry names the destination.
const NoEntry = "no path entry allows it"

// NoIntention is the reason when no intention in Consul names the pair. One command opens
// it, whatever else the destination has.
const NoIntention = "no intention in Consul allows it"

// NotNamed is the reason when the destination has an entry, at file:line, which
// names the source nowhere.
func NotNamed(at string) string { return "the entry at " + at + " does not name it" }

// Sentence says that source may not reach destination.
func Sentence(source, destination, reason string) string {
	return fmt.Sprintf("%s may not reach %s: %s", source, destination, reason)
}

// Open is the command that opens an exact pair which Consul denies for this reason, and
// what does where that one is refused: an entry that was written as a config entry, or has
// had an intention deleted, is edited as one alone.
func Open(source, destination, reason string) string {
	replace := ""
	if strings.Contains(reason, fmt.Sprintf("the intention %s => %s ", source, destination)) { // it is there, and says no
		replace = "-replace "
	}
	return fmt.Sprintf("consul intention create %s-allow %s %s  (where Consul speaks of its legacy API: %s)", replace, source, destination, edit(source, destination))
}

// edit is how a config entry is edited.
func edit(source, destination string) string {
	return fmt.Sprintf("consul config read -kind service-intentions -name %s > d.json, allow %s in its Sources, consul config write d.json", destination, source)
}

// Path is a refused pair that one entry would allow.
type Path struct {
	Source, Destination string
	// Entry of the destination, file:line; empty when it has none.
	Entry string
	// Consul holds the paths, and no file.
	Consul bool
}

var sentence = regexp.MustCompile(`([A-Za-z0-9._-]+) may not reach ([A-Za-z0-9._-]+): (?:` + NoEntry + `|(` + NoIntention + `)|the entry at (.+:\d+) does not name it)`)

// Parse finds the refused pair in a text, if an entry would allow it.
func Parse(text string) (Path, bool) {
	m := sentence.FindStringSubmatch(text)
	if m == nil {
		return Path{}, false
	}
	return Path{Source: m[1], Destination: m[2], Consul: m[3] != "", Entry: m[4]}, true
}

// Mend says where the person who decides writes what. Directory is where the
// broker reads its entries; empty when the reader may not know it.
func (p Path) Mend(directory string) (where, text string) {
	if p.Consul {
		return "the command line of whoever may write the intentions of " + p.Destination + " in Consul (or its UI, or Terraform)",
			fmt.Sprintf("consul intention create -allow %s %s\n# where Consul speaks of its legacy API: %s\n", p.Source, p.Destination, edit(p.Source, p.Destination))
	}
	source := fmt.Sprintf("  { Name = %q, Action = \"allow\" },\n", p.Source)
	if p.Entry != "" {
		return "the list Sources of " + p.Entry + " on the broker's machine", source
	}
	file := "a file " + p.Destination + ".hcl in the broker's paths directory"
	if directory != "" {
		file = directory + "/" + p.Destination + ".hcl on the broker's machine"
	}
	return file, fmt.Sprintf("Kind = \"service-intentions\"\nName = %q\nSources = [\n%s]\n", p.Destination, source)
}

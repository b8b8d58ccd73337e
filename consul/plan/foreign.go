package plan

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var ruled = regexp.MustCompile(`(?m)^\s*[a-z_]+\s+"([^"]*)"\s*\{`)

// foreign are the names that a policy's rules have and the wanted ones have not. Two
// brokers that share a name would take turns in writing over each other's policy: what
// names more than this one asks about is not written over, since nobody can tell whose it
// is.
func foreign(have, want string) (names []string) {
	wanted := map[string]bool{}
	for _, m := range ruled.FindAllStringSubmatch(want, -1) {
		wanted[m[1]] = true
	}
	for _, m := range ruled.FindAllStringSubmatch(have, -1) {
		if !wanted[m[1]] && !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	return names
}

// Refusal says why something that stands in the way is not changed, and who mends it.
func (x Difference) Refusal() string {
	if x.Kind != Policy {
		return fmt.Sprintf("%s is there, says %q, and is not changed: somebody decided so. %s", x.Title(), x.Have, wayOut[x.Kind])
	}
	return fmt.Sprintf("%s is there, is about %s too, which this broker.hcl does not name, and is not changed: it may be another broker's. For a second broker: bivouac consul setup --name NAME. "+
		"Where it is this one's, and is to give less: consul acl policy update -name %s -rules @FILE, with the rules that bivouac consul setup --print shows",
		x.Title(), strings.Join(foreign(x.Have, x.Want), ", "), x.Name)
}

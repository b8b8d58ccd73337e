package jobs

import (
	"fmt"
	"slices"
	"strings"

	"bivouac/edge/legible"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
)

// holder is whose the token in use is, as Nomad says it. The token itself is nowhere in it.
type holder struct {
	said   string
	names  []string // policies that the token names, itself or by its roles
	exists []string // those of them that Nomad has
}

// holder asks. What Nomad does not tell of a token is left out.
func (n *Nomad) holder() (h holder) {
	h.said = "the token " + n.from
	self, _, err := n.api.ACLTokens().Self(nil)
	if err != nil || self == nil {
		return h
	}
	h.names = slices.Clone(self.Policies)
	if all, _, err := n.api.ACLPolicies().List(nil); err == nil && self.Type != managementType {
		for _, p := range all {
			h.exists = append(h.exists, p.Name)
			if !slices.Contains(h.names, p.Name) {
				h.names = append(h.names, p.Name)
			}
		}
	}
	if self.AccessorID == anonymous {
		h.said += ", which is nobody's (anonymous, " + policiesOf(self.Type, h.names) + "),"
	} else {
		h.said = fmt.Sprintf("the token %q (accessor %s, %s) %s", legible.Line(self.Name), self.AccessorID, policiesOf(self.Type, h.names), n.from)
	}
	return h
}

// What Nomad calls its tokens.
const (
	managementType = "management"
	anonymous      = "anonymous"
)

func policiesOf(kind string, names []string) string {
	switch {
	case kind == managementType:
		return "a management token"
	case len(names) == 0:
		return "no policies"
	}
	return "policies " + legible.Line(strings.Join(names, ", "))
}

// lacking is a right that the token in use does not have.
type lacking struct{ said, mend string }

func (l *lacking) Error() string { return l.said + ": " + l.mend }

// Mend is the command that gives it.
func (l *lacking) Mend() string { return l.mend }

// lacks says whose token lacks a right, and what mends that: another token where this one
// has not the policy that setup makes, and setup where that policy is not what it must be.
func (n *Nomad) lacks(right string) *lacking {
	h := n.holder()
	l := &lacking{said: h.said + " lacks " + right}
	setup := n.siteOf(right).Setup()
	switch {
	case right == management, n.admin:
		l.mend = "a management token in NOMAD_TOKEN  (nomad acl token list -type management, by an admin; nomad login makes one where an auth method gives it)"
	case slices.Contains(h.names, ServerPolicy) && !slices.Contains(h.exists, ServerPolicy):
		l.mend = setup + "  (makes the policy " + ServerPolicy + ", which the token names, and which is not there)"
	case slices.Contains(h.names, ServerPolicy):
		l.mend = setup + "  (as an admin of Nomad: the token's policy " + ServerPolicy + " is from an earlier release, or about another namespace; where that is the right one, correct namespace of enrol in server.hcl)"
	default:
		l.mend = n.another() + "  (as an admin of Nomad; if `nomad acl policy info " + ServerPolicy + "` finds none, before it: " + setup + ")"
	}
	return l
}

// another is the command that makes a token with the policy of the server, and puts it
// where this one is read.
func (n *Nomad) another() string {
	create := "nomad acl token create -name " + ServerPolicy + " -policy " + ServerPolicy
	if n.file == "" {
		return create + ", and its Secret ID into NOMAD_TOKEN of the server's environment"
	}
	return "(umask 077; " + create + " -t '{{.SecretID}}' > " + shellword.Quote(n.file) + ")"
}

// siteOf the namespace that a right is about; otherwise the first.
func (n *Nomad) siteOf(right string) Site {
	for _, s := range n.sites {
		if strings.Contains(right, fmt.Sprintf("namespace %q", s.Namespace)) {
			return s
		}
	}
	if len(n.sites) > 0 {
		return n.sites[0]
	}
	return Site{}
}

// mended parts what was said of an error from the command that mends it, for a finding.
func mended(err error, otherwise string) (what, mend string) {
	mend = protocol.Mend(err, otherwise)
	return strings.TrimSuffix(err.Error(), ": "+mend), mend
}

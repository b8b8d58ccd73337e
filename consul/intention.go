package consul

import (
	"fmt"
	"slices"
	"strings"

	"bivouac/consul/refused"
)

// Wildcard stands for every name.
const Wildcard = "*"

// Intention is one service-intentions entry: who may reach Destination.
type Intention struct {
	Destination string
	Sources     []Source
	// At is where the entry stands, file:line.
	At string
}

// Source of an intention. With Permissions it is about requests (L7), without
// them about whole connections (L4).
type Source struct {
	Name string
	// Allow when there are no Permissions.
	Allow       bool
	Permissions []Permission
	// At is where it stands, file:line.
	At string
}

// Decision about one pair.
type Decision struct {
	Allowed bool
	// Reason names the entry that decided, for people; or why nobody knows.
	Reason string
	// Stale: a server has not said so anew for a while. What is open may go on as
	// Allowed says; nothing new may begin.
	Stale bool
	// Unknown: nobody knows what holds. It is not allowed, and not denied either.
	Unknown bool
}

// Set is what all entries together say. It does not change once it decides.
type Set struct {
	byDestination map[string]Intention
	// broken destinations are denied whatever else says.
	broken map[string]string
	// noWildcard is why "*" destinations have no force; empty when they have.
	noWildcard string
	// silent is what is said where no entry decides; empty: refused's words for files.
	silent string
}

// Silent is the set with another reason for what no entry names.
func (s *Set) Silent(reason string) *Set {
	out := *s
	out.silent = reason
	return &out
}

// Deny closes a destination whose entry cannot be understood, whatever else says.
func (s *Set) Deny(destination, why string) { s.deny(destination, why) }

// NewSet joins entries. Two entries for one destination contradict each other:
// the destination is denied.
func NewSet(intentions ...Intention) *Set {
	s := &Set{byDestination: map[string]Intention{}, broken: map[string]string{}}
	for _, in := range intentions {
		if old, twice := s.byDestination[in.Destination]; twice {
			s.deny(in.Destination, fmt.Sprintf("two entries, %s and %s, name the destination %q", old.At, in.At, in.Destination))
			continue
		}
		s.byDestination[in.Destination] = in
	}
	return s
}

// deny closes a destination for an error. A broken "*" closes all that no exact
// entry names.
func (s *Set) deny(destination, why string) {
	if destination == Wildcard {
		s.noWildcard = why
		return
	}
	s.broken[destination] = why
}

// Decide evaluates one pair and one request: the most exact destination, then the
// most exact source, then its first permission that matches, else denied. Without
// a request it answers whether any could be allowed: a question that is asked
// before there is one, and never instead.
func (s *Set) Decide(source, destination string, r *Request) Decision {
	if source == "" || destination == "" || source == Wildcard || destination == Wildcard {
		return Decision{Reason: fmt.Sprintf("%q to %q names no exact pair", source, destination)}
	}
	if why, ok := s.broken[destination]; ok {
		return Decision{Reason: why}
	}
	why := refused.NoEntry
	if in, ok := s.byDestination[destination]; ok {
		if d, found := in.decide(source, r); found {
			return d
		}
		why = refused.NotNamed(in.At)
	}
	in, ok := s.byDestination[Wildcard]
	switch {
	case s.noWildcard != "":
		return Decision{Reason: s.noWildcard}
	case ok:
		if d, found := in.decide(source, r); found {
			return d
		}
	}
	if s.silent != "" {
		why = s.silent
	}
	return Decision{Reason: why}
}

func (in Intention) decide(source string, r *Request) (Decision, bool) {
	for _, name := range []string{source, Wildcard} {
		if i := slices.IndexFunc(in.Sources, func(s Source) bool { return s.Name == name }); i >= 0 {
			return in.Sources[i].decide(in.Destination, r), true
		}
	}
	return Decision{}, false
}

func (s Source) decide(destination string, r *Request) Decision {
	say := func(allow bool, at, what string) Decision {
		verb := "denies"
		if allow {
			verb = "allows"
		}
		return Decision{Allowed: allow, Reason: fmt.Sprintf("%s %s %q to %s %q", at, verb, s.Name, what, destination)}
	}
	switch {
	case len(s.Permissions) == 0:
		return say(s.Allow, s.At, "reach")
	case r == nil:
		return say(slices.ContainsFunc(s.Permissions, func(p Permission) bool { return p.Allow }), s.At, "make some requests to")
	}
	if name, sealed := looksAtSealed(s.Permissions, r.Sealed); sealed {
		return Decision{Reason: fmt.Sprintf("%s asks for the header %s, which carries the credential of %q: nobody looks at it, so nothing is allowed", s.At, name, destination)}
	}
	last := Decision{Reason: fmt.Sprintf("the path %q cannot be read", r.Path)}
	for _, form := range r.forms() {
		last = Decision{Reason: fmt.Sprintf("no permission of %q at %s matches %s %s", s.Name, s.At, r.Method, form)}
		if i := slices.IndexFunc(s.Permissions, func(p Permission) bool { return p.HTTP.matches(r, form) }); i >= 0 {
			last = say(s.Permissions[i].Allow, s.Permissions[i].At, fmt.Sprintf("send %s %s to", r.Method, form))
		}
		if !last.Allowed {
			return last
		}
	}
	return last
}

// Destinations that entries name, sorted.
func (s *Set) Destinations() []string {
	var out []string
	for name := range s.byDestination {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// SourceName of an agent: agent-<name>, outside of the tenant "local" prefixed
// with the tenant's name.
func SourceName(tenant, agent string) string {
	name := "agent-" + agent
	if tenant != "local" {
		name = tenant + "--" + name
	}
	return name
}

// ModelDestination is the name under which paths govern a model route.
func ModelDestination(route string) string { return "model-" + route }

// CheckName holds for both ends: Consul's service names, or the whole wildcard.
func CheckName(name string) error {
	if name == Wildcard {
		return nil
	}
	if name == "" || len(name) > 128 {
		return fmt.Errorf("a name has 1 to 128 characters")
	}
	if strings.Contains(name, Wildcard) {
		return fmt.Errorf("%q: * stands alone or not at all, as in Consul", name)
	}
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.') {
			return fmt.Errorf("%q: names have letters, digits, hyphens, dots and underscores", name)
		}
	}
	return nil
}

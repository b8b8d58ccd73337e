package plan

import (
	"fmt"
	"slices"
	"strings"
)

// DefaultName of the policy and of the role.
const DefaultName = "bivouac-broker"

// Kind of an item.
type Kind string

// The kinds, in the order in which they are made.
const (
	Policy      Kind = "policy"
	Role        Kind = "role"
	DefaultDeny Kind = "intention"
	Protocol    Kind = "service-defaults"
)

// Item is one thing that Consul must have.
type Item struct {
	Kind Kind
	Name string
	// For says what does not work without it, as in "without it, …".
	For string
	// Want is what it must say: rules, the name of a policy, an action, or a protocol.
	Want string
}

// Title of an item.
func (i Item) Title() string { return string(i.Kind) + " " + i.Name }

// Plan is what Consul must have, in the order in which it is made.
type Plan struct{ Items []Item }

// everything is the name of the deny under everything.
const everything = "* => *"

// Services are broker and server as Consul knows them.
type Services struct{ Broker, Server string }

// New makes the plan of a broker that asks about these destinations. name is that of its
// policy and role. services, where there are some, are what it and its server are in
// Consul; the server's policy and role have the name of its service.
func New(name string, destinations []string, services ...Services) Plan {
	names := slices.Sorted(slices.Values(destinations))
	own := ""
	for _, s := range services {
		own = s.Broker
		names = append(slices.DeleteFunc(names, func(n string) bool { return n == own }), own)
	}
	names = slices.Compact(names)
	p := Plan{Items: []Item{
		{Policy, name, "the broker may not read who may reach what, and nothing begins", RulesOf(names, own)},
		{Role, name, "no token of the broker's can be made with the policy", name},
	}}
	for _, s := range services {
		p.Items = append(p.Items,
			Item{Policy, s.Server, "the server is in no catalog, and with a mesh block it has no identity and does not reach the broker", ServerRules(s.Server)},
			Item{Role, s.Server, "no token of the server's can be made with the policy", s.Server})
	}
	p.Items = append(p.Items,
		Item{DefaultDeny, everything, "what no intention names may be reached by all in the mesh, where access control allows by default or is off; Bivouac itself denies it in any case", "deny"})
	for _, d := range names {
		p.Items = append(p.Items, Item{Protocol, d, "Consul takes no permissions about single requests to " + d, "http"})
	}
	return p
}

// FromNothing is the difference with a Consul that has none of it.
func (p Plan) FromNothing() (d Diff) {
	for _, i := range p.Items {
		d = append(d, Difference{Item: i, State: Missing})
	}
	return d
}

// Rules of the policy of a broker that is no service itself.
func Rules(destinations []string) string { return RulesOf(destinations, "") }

// RulesOf the broker's policy: to read intentions, of what it asks about and of nothing
// else. It writes no intention; own is the one service that it registers, and whose leaf it
// has; empty: none.
func RulesOf(destinations []string, own string) string {
	var b strings.Builder
	b.WriteString("# What Bivouac's broker may do in Consul: read who may reach its destinations.\n")
	if own != "" {
		fmt.Fprintf(&b, "service %q {\n  policy     = \"write\"\n  intentions = \"read\"\n}\n", own)
	}
	for _, d := range destinations {
		if d == own {
			continue
		}
		fmt.Fprintf(&b, "service %q {\n  policy     = \"read\"\n  intentions = \"read\"\n}\n", d)
	}
	return b.String()
}

// ServerRules are those of the server's policy: to register its service, and to have its
// leaf. It reads no intention of others, and writes none.
func ServerRules(own string) string {
	return fmt.Sprintf("# What Bivouac's server may do in Consul: be the service.\nservice %q {\n  policy     = \"write\"\n  intentions = \"read\"\n}\n", own)
}

// State of an item in Consul.
type State string

// The states of what differs.
const (
	Missing State = "missing"
	Differs State = "differs"
	// InTheWay: somebody decided otherwise, and it is not touched.
	InTheWay State = "in_the_way"
)

// Difference is an item that Consul does not have as it must be.
type Difference struct {
	Item
	State State
	// Have is what it says instead; empty where it is missing.
	Have string

	entry map[string]any // as it is there
	index uint64         // of it; zero: nothing is there
	id    string         // of a policy or role
}

// Diff is everything that differs, in the order of the plan.
type Diff []Difference

// String shows a difference as a person reads it: + is made, ~ is changed, ! stands in the
// way.
func (d Diff) String() string {
	if len(d) == 0 {
		return "nothing differs\n"
	}
	var b strings.Builder
	for _, x := range d {
		fmt.Fprintf(&b, "%s %s\n", map[State]string{Missing: "+", Differs: "~", InTheWay: "!"}[x.State], x.Title())
		for _, line := range x.lines() {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	return b.String()
}

// lines say what is made of what.
func (x Difference) lines() (out []string) {
	switch {
	case x.Kind == Policy:
		have, want := split(x.Have), split(x.Want)
		for _, l := range have {
			if !slices.Contains(want, l) {
				out = append(out, "- "+l)
			}
		}
		for _, l := range want {
			switch {
			case x.State == Missing:
				out = append(out, l)
			case !slices.Contains(have, l):
				out = append(out, "+ "+l)
			}
		}
		if len(out) == 0 {
			out = []string{"(the same lines in another order)"}
		}
		return out
	case x.State == Missing:
		return []string{fields[x.Kind] + " = " + fmt.Sprintf("%q", x.Want)}
	}
	return []string{fmt.Sprintf("%s = %q -> %q", fields[x.Kind], x.Have, x.Want)}
}

// fields are how Consul calls what an item says.
var fields = map[Kind]string{Role: "policies", DefaultDeny: "action", Protocol: "protocol"}

// split a text of rules into blocks, one a line.
func split(text string) (out []string) {
	block := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case line == "}":
			out, block = append(out, block+" }"), ""
		case block != "":
			block += " " + strings.Join(strings.Fields(line), " ")
		default:
			block = line
		}
	}
	if block != "" {
		out = append(out, block)
	}
	return out
}

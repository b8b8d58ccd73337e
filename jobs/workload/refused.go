package workload

import "bivouac/edge/protocol"

// Class of a refusal: what has to be mended.
type Class string

// Classes of what a key of Nomad signed, and of what none did.
const (
	ClassTimes  Class = "times"  // it has no end, lives too long, or is not in force by our clock
	ClassClaims Class = "claims" // it does not name its task and node
	ClassRule   Class = "rule"   // no rule takes it
	ClassEnrol  Class = "enrol"  // it is taken, and the machine or its owner is refused

	ClassUnsigned   Class = "unsigned"   // no key of Nomad's signed it
	ClassUnreadable Class = "unreadable" // it is no identity
	ClassKeys       Class = "keys"       // Nomad's keys could not be read
)

// Refused is an identity that a key of Nomad signed, and that was refused all the same.
// Only of such a one do claims count as true: who could not sign is told apart by there
// being none.
type Refused struct {
	Class Class
	Who   Identity // as far as the claims say it
	// Rule of the same namespace, job and task, and its tenant; empty: no rule is about it.
	Rule   string
	Tenant protocol.TenantID
	Err    error
}

func (r *Refused) Error() string { return r.Err.Error() }

func (r *Refused) Unwrap() error { return r.Err }

// refuse says of whom a refusal is.
func (j *Judge) refuse(class Class, c claims, err error) *Refused {
	r := &Refused{Class: class, Who: Identity{Namespace: c.Namespace, Job: c.Job, Task: c.Task}, Err: err}
	if node, _ := c.Extra[ClaimNode].(string); nodeID.MatchString(node) {
		r.Who.Node = node
	}
	for _, rule := range j.rules {
		if rule.Namespace == c.Namespace && rule.Job == c.Job && rule.Task == c.Task && r.Rule == "" {
			r.Rule, r.Tenant = rule.Name, rule.Tenant
		}
	}
	return r
}

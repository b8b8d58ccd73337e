package workload

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"bivouac/edge/protocol"
)

// Bounds of what is taken for an identity.
const (
	// MaxLife is the longest that one may live: whoever verifies it here cannot see that
	// its allocation has ended meanwhile.
	MaxLife = time.Hour
	// skew is how far two clocks may be apart.
	skew = 30 * time.Second
)

// claims are what Nomad signs, as far as they are judged.
type claims struct {
	Issuer     string         `json:"iss"`
	Subject    string         `json:"sub"`
	Audience   audience       `json:"aud"`
	IssuedAt   int64          `json:"iat"`
	NotBefore  int64          `json:"nbf"`
	ExpiresAt  int64          `json:"exp"`
	Namespace  string         `json:"nomad_namespace"`
	Job        string         `json:"nomad_job_id"`
	Allocation string         `json:"nomad_allocation_id"`
	Task       string         `json:"nomad_task"`
	Service    string         `json:"nomad_service"`
	Extra      map[string]any `json:"extra_claims"`
}

// audience is one string or several (RFC 7519, 4.1.3).
type audience []string

func (a *audience) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*a = audience{one}
		return nil
	}
	var all []string
	err := json.Unmarshal(b, &all)
	*a = all
	return err
}

// inForce judges the times of an identity.
func (c claims) inForce(now time.Time) error {
	at := func(s int64) time.Time { return time.Unix(s, 0).UTC() }
	const clock = "see that the clocks of this server and of Nomad's agree"
	switch {
	case c.ExpiresAt == 0 || c.IssuedAt == 0:
		return refused("it has no end, as Nomad's default identity has none: give the task's identity block a ttl, as in jobs/runner.nomad.hcl")
	case at(c.ExpiresAt).Sub(at(c.IssuedAt)) > MaxLife:
		return refused("it lives for %s, and at most %s is taken: set ttl = \"15m\" in the task's identity block", at(c.ExpiresAt).Sub(at(c.IssuedAt)), MaxLife)
	case !now.Before(at(c.ExpiresAt).Add(skew)):
		return refused("it expired at %s: Nomad writes a new one into the file before that while the task runs; %s", at(c.ExpiresAt).Format(time.RFC3339), clock)
	case now.Add(skew).Before(at(max(c.NotBefore, c.IssuedAt))):
		return refused("it holds from %s on: %s", at(max(c.NotBefore, c.IssuedAt)).Format(time.RFC3339), clock)
	}
	return nil
}

// nodeID has the form of the ids of Nomad's nodes.
var nodeID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// Names of the extra claims that the namespace of runners requires.
const (
	ClaimNode = "node_id"
	ClaimPool = "node_pool"
)

// ExtraClaims are what a namespace of runners requires, as Nomad fills them in.
func ExtraClaims() map[string]string {
	return map[string]string{ClaimNode: "${node.id}", ClaimPool: "${node.pool}"}
}

// extra is one of them. Nomad leaves what it does not know as it was written.
func (c claims) extra(name string) (string, error) {
	mend := fmt.Sprintf("set the extra claims of namespace %[1]s with `bivouac nomad setup --apply --namespace %[1]s`, then start the job again", c.Namespace)
	value, ok := c.Extra[name].(string)
	switch {
	case !ok:
		return "", refused("it has no extra claim %s: %s", name, mend)
	case strings.Contains(value, "${"):
		return "", refused("its extra claim %s is %q, which Nomad did not fill in: %s", name, value, mend)
	case value == "":
		return "", refused("its extra claim %s is empty, as in the identity of a service: use the identity of a task", name)
	}
	return value, nil
}

// identity reads who an identity in force is of.
func (c claims) identity() (Identity, error) {
	if c.Service != "" || c.Task == "" {
		return Identity{}, refused("it is of a service and not of a task: use the identity block of the task that runs bivouac-edge")
	}
	node, err := c.extra(ClaimNode)
	if err != nil {
		return Identity{}, err
	}
	if !nodeID.MatchString(node) {
		return Identity{}, refused("its extra claim %s is %q, which is no id of a node", ClaimNode, node)
	}
	pool, err := c.extra(ClaimPool)
	if err != nil {
		return Identity{}, err
	}
	return Identity{Namespace: c.Namespace, Job: c.Job, Task: c.Task, Allocation: c.Allocation, Node: node, Pool: pool}, nil
}

// Identity is what Nomad says of a task.
type Identity struct {
	Namespace, Job, Task string
	Allocation           string
	Node, Pool           string
}

// Machine is the name under which a runner of the identity's node is kept: one a node
// and task, since two tasks of a job may belong to two tenants.
func (i Identity) Machine() string {
	return strings.Join([]string{i.Namespace, i.Job, i.Task, i.Node}, "/")
}

// Rule binds the identities of one task to whom its machines belong to.
type Rule struct {
	Name     string // label in server.hcl
	Audience string
	// Issuer that identities must name; empty: they must name none.
	Issuer               string
	Namespace, Job, Task string
	// Pool of nodes; empty: any.
	Pool string

	Tenant    protocol.TenantID
	Principal string   // who owns the machines, by name or id
	Actions   []string // that the owner is bound for; empty: all that a machine allows

	// Program and State are bivouac-edge and its folder on the nodes; empty: those of
	// jobs/runner.nomad.hcl.
	Program, State string
}

// ProgramPath and StatePath are where they are.
func (r Rule) ProgramPath() string { return cmp.Or(r.Program, "/usr/local/bin/bivouac-edge") }

func (r Rule) StatePath() string { return cmp.Or(r.State, "/var/lib/bivouac-edge") }

// match finds the rule of an identity. Several are tried, and the one that came closest
// says what is wrong.
func match(rules []Rule, c claims, id Identity) (Rule, error) {
	var nearest error
	most := -1
	for _, r := range rules {
		fits := 0
		var err error
		for _, is := range []struct{ what, have, want string }{
			{"namespace", id.Namespace, r.Namespace}, {"job", id.Job, r.Job}, {"task", id.Task, r.Task},
		} {
			if is.have == is.want {
				fits++
			} else if err == nil {
				err = denied("it is of %s %q, and enrol %q of server.hcl takes %q", is.what, is.have, r.Name, is.want)
			}
		}
		switch {
		case err != nil:
		case !slices.Contains(c.Audience, r.Audience):
			err = denied("it is for %q, and enrol %q of server.hcl takes %q: set aud in the task's identity block", strings.Join(c.Audience, ", "), r.Name, r.Audience)
		case c.Issuer != r.Issuer && r.Issuer == "":
			err = denied("its issuer is %q, and enrol %q of server.hcl names none: set issuer there", c.Issuer, r.Name)
		case c.Issuer != r.Issuer:
			err = denied("its issuer is %q, and enrol %q of server.hcl takes %q: it is Nomad's server.oidc_issuer", c.Issuer, r.Name, r.Issuer)
		case r.Pool != "" && id.Pool != r.Pool:
			err = denied("its node is in pool %q, and enrol %q of server.hcl takes %q", id.Pool, r.Name, r.Pool)
		default:
			return r, nil
		}
		if fits > most {
			most, nearest = fits, err
		}
	}
	if nearest == nil {
		nearest = denied("this server takes none: see nomad and enrol in jobs/README.md")
	}
	return Rule{}, nearest
}

func refused(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeUnauthenticated, "the workload identity is refused: "+format, args...)
}

func denied(format string, args ...any) error {
	return protocol.Errorf(protocol.CodePermissionDenied, "the workload identity is refused: "+format, args...)
}

var (
	errNotCompact = errors.New("it is no JWT in compact form")
	errAlgorithm  = errors.New("it is signed in another way than with RS256 or EdDSA")
)

package jobs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
	"bivouac/jobs/workload"
)

// Names of the policies that setup makes: one for the server, which reads, and one for
// who runs the jobs. Neither has what the other needs.
const (
	ServerPolicy = "bivouac-server"
	DeployPolicy = "bivouac-deploy"
)

// Names of the site that setup is about where nobody says another.
const (
	DefaultNamespace = "agents"
	DefaultPool      = "agents"
)

// Site is what a Nomad must have for Bivouac.
type Site struct {
	Namespace string
	Pools     []string
}

// Setup is the command that makes it.
func (s Site) Setup() string { return "bivouac nomad setup --apply" + s.Flags() }

// Flags that name it, where it is not the usual one.
func (s Site) Flags() (words string) {
	if s.Namespace != "" && s.Namespace != DefaultNamespace {
		words = " --namespace " + shellword.Quote(s.Namespace)
	}
	if len(s.Pools) > 0 && !slices.Equal(s.Pools, []string{DefaultPool}) {
		for _, p := range s.Pools {
			words += " --node-pool " + shellword.Quote(p)
		}
	}
	return words
}

// Check the names.
func (s Site) Check() error {
	for _, name := range append([]string{s.Namespace}, s.Pools...) {
		if name == "" || strings.ContainsAny(name, "*/\" \n") || len(name) > 128 {
			return protocol.Errorf(protocol.CodeInvalidArgument, "%q is no name of a namespace or a node pool: name them with --namespace and --node-pool", name)
		}
	}
	if len(s.Pools) == 0 || slices.Contains(s.Pools, api.NodePoolAll) {
		return protocol.Errorf(protocol.CodeInvalidArgument, "runners belong to the nodes of pools of their own, and %q is every node: name one with --node-pool", api.NodePoolAll)
	}
	return nil
}

// ServerRules are what the server's token may: read nodes, and in the namespace make, read
// and end jobs, for attempts that have one of their own.
func (s Site) ServerRules() string {
	return fmt.Sprintf(`namespace %q {
  capabilities = ["list-jobs", "read-job", "register-job", "deregister-job", "purge-job"]
}
node {
  policy = "read"
}
`, s.Namespace)
}

// DeployRules are what who runs the job files, and restarts what they run, may, and no
// node.
func (s Site) DeployRules() string {
	text := fmt.Sprintf(`namespace %q {
  capabilities = ["list-jobs", "read-job", "submit-job", "read-logs", "alloc-lifecycle"]
}
host_volume "bivouac-*" {
  policy = "write"
}
`, s.Namespace)
	for _, p := range s.Pools {
		text += fmt.Sprintf("node_pool %q {\n  policy = \"read\"\n}\n", p)
	}
	return text
}

// Difference is one thing that is missing or is another.
type Difference struct {
	Kind, Name string
	Missing    bool
	// Changes are lines of what differs, as - have and + want.
	Changes []string
	// Without is what does not work without it.
	Without string

	apply func(ctx context.Context, n *Nomad) error
}

// Title names it.
func (d Difference) Title() string { return d.Kind + " " + d.Name }

// Differences of a Nomad.
type Differences []Difference

// String shows them: + is made, ~ is changed.
func (all Differences) String() string {
	if len(all) == 0 {
		return "nothing differs\n"
	}
	var b strings.Builder
	for _, d := range all {
		sign := "~"
		if d.Missing {
			sign = "+"
		}
		fmt.Fprintf(&b, "%s %s\n", sign, d.Title())
		for _, line := range d.Changes {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	return b.String()
}

// Diff is what setup would make.
func (n *Nomad) Diff(ctx context.Context, s Site) (all Differences, err error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	steps := []func(context.Context) (*Difference, error){
		func(ctx context.Context) (*Difference, error) { return n.diffNamespace(ctx, s) },
	}
	for _, pool := range s.Pools {
		if pool != api.NodePoolDefault {
			steps = append(steps, func(ctx context.Context) (*Difference, error) { return n.diffPool(ctx, pool) })
		}
	}
	for _, p := range []*api.ACLPolicy{
		{Name: ServerPolicy, Description: "Bivouac's server: reads nodes, and makes and ends jobs of attempts", Rules: s.ServerRules()},
		{Name: DeployPolicy, Description: "Who runs Bivouac's job files", Rules: s.DeployRules()},
	} {
		steps = append(steps, func(ctx context.Context) (*Difference, error) { return n.diffPolicy(ctx, p) })
	}
	for _, step := range steps {
		d, err := step(ctx)
		if err != nil {
			return nil, err
		}
		if d != nil {
			all = append(all, *d)
		}
	}
	return all, nil
}

// diffNamespace compares the claims that identities of the namespace have. What else
// stands in it is its owner's and stays.
func (n *Nomad) diffNamespace(ctx context.Context, s Site) (*Difference, error) {
	d := &Difference{Kind: "namespace", Name: s.Namespace, Without: "identities of runners do not name their node, and no machine can enrol"}
	have, _, err := n.api.Namespaces().Info(s.Namespace, query(ctx, ""))
	if err = n.failed("reading namespace "+s.Namespace, management, err); notFound(err) {
		have, err = &api.Namespace{Name: s.Namespace, Description: "Runners of Bivouac"}, nil
		d.Missing = true
	}
	if err != nil {
		return nil, err
	}
	want := workload.ExtraClaims()
	for _, claim := range slices.Sorted(maps.Keys(want)) {
		switch value, ok := have.RequiredExtraClaims[claim]; {
		case !ok:
			d.Changes = append(d.Changes, "+ required_extra_claims "+claim+" = "+want[claim])
		case value != want[claim]:
			d.Changes = append(d.Changes, "- required_extra_claims "+claim+" = "+value, "+ required_extra_claims "+claim+" = "+want[claim])
		}
	}
	if len(d.Changes) == 0 {
		return nil, nil
	}
	next := *have
	next.RequiredExtraClaims = maps.Clone(have.RequiredExtraClaims)
	if next.RequiredExtraClaims == nil {
		next.RequiredExtraClaims = map[string]string{}
	}
	maps.Copy(next.RequiredExtraClaims, want)
	d.apply = func(ctx context.Context, n *Nomad) error {
		_, err := n.api.Namespaces().Register(&next, change(ctx, ""))
		return n.failed("making namespace "+s.Namespace, management, err)
	}
	return d, nil
}

func (n *Nomad) diffPool(ctx context.Context, pool string) (*Difference, error) {
	_, _, err := n.api.NodePools().Info(pool, query(ctx, ""))
	if err = n.failed("reading node pool "+pool, `node_pool "`+pool+`" { policy = "write" }`, err); !notFound(err) {
		return nil, err
	}
	return &Difference{Kind: "node pool", Name: pool, Missing: true, Without: "jobs of the pool are refused until its first node has come",
		apply: func(ctx context.Context, n *Nomad) error {
			_, err := n.api.NodePools().Register(&api.NodePool{Name: pool, Description: "Nodes that run runners of Bivouac"}, change(ctx, ""))
			return n.failed("making node pool "+pool, `node_pool "`+pool+`" { policy = "write" }`, err)
		}}, nil
}

func (n *Nomad) diffPolicy(ctx context.Context, want *api.ACLPolicy) (*Difference, error) {
	d := &Difference{Kind: "policy", Name: want.Name, Without: want.Description + " cannot do it with a token of its own"}
	have, _, err := n.api.ACLPolicies().Info(want.Name, query(ctx, ""))
	err = n.failed("reading policy "+want.Name, management, err)
	switch {
	case notFound(err):
		d.Missing, have = true, &api.ACLPolicy{}
	case err != nil:
		return nil, err
	case strings.TrimSpace(have.Rules) == strings.TrimSpace(want.Rules):
		return nil, nil
	}
	d.Changes = lineDiff(have.Rules, want.Rules)
	next := *want
	next.JobACL = have.JobACL
	d.apply = func(ctx context.Context, n *Nomad) error {
		_, err := n.api.ACLPolicies().Upsert(&next, change(ctx, ""))
		return n.failed("writing policy "+want.Name, management, err)
	}
	return d, nil
}

// lineDiff shows lines that are in one text alone, in their order: policies are short.
func lineDiff(have, want string) (out []string) {
	a, b := strings.Split(strings.TrimSpace(have), "\n"), strings.Split(strings.TrimSpace(want), "\n")
	for _, l := range a {
		if l != "" && !slices.Contains(b, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			out = append(out, "+ "+l)
		}
	}
	return out
}

// Apply makes what differs, one after the other, and tells of each.
func (n *Nomad) Apply(ctx context.Context, all Differences, told func(Difference)) error {
	for _, d := range all {
		if err := d.apply(ctx, n); err != nil {
			return err
		}
		told(d)
	}
	return nil
}

// Policies are what setup makes, as text to review.
func (s Site) Policies() map[string]string {
	return map[string]string{ServerPolicy: s.ServerRules(), DeployPolicy: s.DeployRules()}
}

// Admin is the configuration of whoever sets Nomad up, as Nomad's own command line reads
// it: NOMAD_ADDR, NOMAD_CACERT, NOMAD_CLIENT_CERT, NOMAD_CLIENT_KEY and NOMAD_TOKEN.
func Admin(env func(string) string) (Config, error) {
	c := Config{Address: strings.TrimRight(env("NOMAD_ADDR"), "/"), CAFile: env("NOMAD_CACERT"),
		CertFile: env("NOMAD_CLIENT_CERT"), KeyFile: env("NOMAD_CLIENT_KEY"), Token: Secret(env("NOMAD_TOKEN")), admin: true}
	if c.Address == "" {
		return c, protocol.Errorf(protocol.CodeInvalidArgument, "no Nomad is named: set NOMAD_ADDR, https://HOST:4646, and NOMAD_CACERT where its authority is no public one")
	}
	if err := checkAddress(c.Address); err != nil {
		return c, protocol.Errorf(protocol.CodeInvalidArgument, "NOMAD_ADDR: %w", err)
	}
	if _, err := c.tls(); err != nil {
		return c, protocol.Errorf(protocol.CodeInvalidArgument, "NOMAD_CACERT, NOMAD_CLIENT_CERT and NOMAD_CLIENT_KEY: %w", err)
	}
	return c, nil
}

package jobs

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/mod/semver"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/jobs/workload"
)

// OldestNomad that is supported: before it, identities had no extra claims that name the
// node, and known faults in scheduling were not mended.
const OldestNomad = "2.0.5"

// examineIn bounds a look at Nomad.
const examineIn = 15 * time.Second

// Examine says from here what enrolment and the watch over nodes stand on, each right by
// trying it. It changes nothing.
func (c Config) Examine(ctx context.Context, r *finding.Report) {
	ctx, cancel := context.WithTimeout(ctx, examineIn)
	defer cancel()
	if !c.examineServer(ctx, r) {
		return
	}
	if c.TokenFile == "" && c.Token == "" {
		r.Warn("nomad.token", "there is none, so nodes are not read, and no allocations are made", "turns go to nodes that drain, bivouac explain cannot say what Nomad waits for, and agents with allocation = \"own\" wait",
			"nomad acl token create -policy "+ServerPolicy+"; name its file in the nomad block: token_file")
		return
	}
	err := c.Ask(func(n *Nomad) error {
		if n.examine(ctx, r, c.Sites()) {
			n.examineAllocations(ctx, r, c.Rules, c.MaxAllocations)
			c.examineOpen(ctx, r, c.Sites())
			n.examineRPC(ctx, r)
		}
		return nil
	})
	r.Err("nomad.token", err, "nodes cannot be read, so that turns go to nodes that drain", "ls -l "+c.TokenFile)
}

// ExamineAll says what an admin sees, and what setup would make.
func (c Config) ExamineAll(ctx context.Context, r *finding.Report, s Site) {
	ctx, cancel := context.WithTimeout(ctx, examineIn)
	defer cancel()
	if !c.examineServer(ctx, r) {
		return
	}
	err := c.Ask(func(n *Nomad) error {
		n.sites = []Site{s}
		if n.examine(ctx, r, n.sites) {
			n.examineSite(ctx, r, s)
			c.examineOpen(ctx, r, []Site{s})
		}
		return nil
	})
	r.Err("nomad.token", err, "what Nomad has is compared by your token", "nomad login  (or NOMAD_TOKEN)")
}

// examine by a token, as far as it leads.
func (n *Nomad) examine(ctx context.Context, r *finding.Report, sites []Site) bool {
	if !n.examineToken(ctx, r) {
		return false
	}
	n.examineVersion(r)
	for _, s := range sites {
		n.examineJobs(ctx, r, s.Namespace)
		n.examineNodes(ctx, r, s.Pools)
	}
	return true
}

// Sites of the rules: namespaces, each with its pools, which may be none.
func (c Config) Sites() (all []Site) {
	for _, rule := range c.Rules {
		i := slices.IndexFunc(all, func(s Site) bool { return s.Namespace == rule.Namespace })
		if i < 0 {
			i, all = len(all), append(all, Site{Namespace: rule.Namespace})
		}
		if rule.Pool != "" && !slices.Contains(all[i].Pools, rule.Pool) {
			all[i].Pools = append(all[i].Pools, rule.Pool)
		}
	}
	return all
}

// examineServer is what everybody may ask: the keys, and by their answer the clock.
func (c Config) examineServer(ctx context.Context, r *finding.Report) bool {
	const why = "no machine enrols by its workload identity"
	mend := "curl " + c.Address + workload.JWKSPath
	client, err := c.Client()
	if r.Err("nomad", err, why, mend) {
		return false
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Address+workload.JWKSPath, nil)
	if r.Err("nomad", err, why, mend) {
		return false
	}
	asked := time.Now()
	res, err := client.Do(req)
	if err != nil {
		r.Bad("nomad", c.Address+" does not answer: "+err.Error(), why, mend)
		return false
	}
	defer res.Body.Close()
	round := time.Since(asked)
	if res.StatusCode != http.StatusOK {
		r.Bad("nomad", c.Address+" answers "+res.Status+" when it is asked for its keys", why, "nomad server members  (is there a leader?); "+mend)
		return false
	}
	r.Fine("nomad", "%s answers, and publishes the keys of its identities", c.Address)
	if strings.HasPrefix(c.Address, "http://") {
		r.Warn("nomad.tls", c.Address+" is not HTTPS", "tokens and keys are in the clear on this machine", "tls { http = true … } in Nomad's configuration, and https:// in the nomad block")
	}
	examineCertificate(r, res.TLS)
	if seen, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		r.Clock("Nomad at "+c.Address, seen, asked.Add(round/2), round+time.Second)
	}
	return true
}

// examineToken asks who the token is, which also says whether there is access control.
func (n *Nomad) examineToken(ctx context.Context, r *finding.Report) bool {
	self, _, err := n.api.ACLTokens().Self(query(ctx, ""))
	if err != nil && strings.Contains(err.Error(), "ACL support disabled") {
		r.Bad("nomad.acl", "access control is off", "whoever reaches Nomad runs what they like on every node, as its user", "acl { enabled = true } in the configuration of servers and clients, then nomad acl bootstrap")
		return false
	}
	if r.Err("nomad.token", n.failed("asking who the token is", "any policy", err), "nodes cannot be read", "nomad acl token self") {
		return false
	}
	life := "without an end"
	if self.ExpirationTime != nil {
		life = "until " + self.ExpirationTime.UTC().Format(time.RFC3339)
		if time.Until(*self.ExpirationTime) < 24*time.Hour {
			r.Warn("nomad.token", "the token ends "+life, "nodes cannot be read then; nothing that runs is touched", n.another()+"  (it is read anew)")
			return true
		}
	}
	if self.AccessorID == anonymous && n.admin {
		r.Bad("nomad.token", "NOMAD_TOKEN holds none: Nomad is asked as nobody", "what Nomad has is compared by your token", "nomad login  (or a management token in NOMAD_TOKEN)")
		return false
	}
	r.Fine("nomad.token", "%s, %s", n.holder().said, life)
	return true
}

// examineVersion of all servers, which their members tell.
func (n *Nomad) examineVersion(r *finding.Report) {
	members, err := n.api.Agent().Members()
	if err != nil {
		what, mend := mended(n.failed("listing servers", `agent { policy = "read" }`, plain(err)), "nomad server members")
		r.Warn("nomad.version", "the versions of the servers cannot be seen: "+what, "before "+OldestNomad+" identities do not name their node", mend)
		return
	}
	var old, all []string
	for _, m := range members.Members {
		build := m.Tags["build"]
		all = append(all, build)
		if v := "v" + build; !semver.IsValid(v) || semver.Compare(v, "v"+OldestNomad) < 0 {
			old = append(old, fmt.Sprintf("%s (%s)", m.Name, build))
		}
	}
	slices.Sort(all)
	if len(old) > 0 {
		r.Bad("nomad.version", "these servers are older than "+OldestNomad+": "+strings.Join(old, ", "), "identities of runners need what came with it", "update Nomad on them")
		return
	}
	r.Fine("nomad.version", "%s", strings.Join(slices.Compact(all), ", "))
}

// plain is an error of nomad/api that has lost its type on the way: an answer of 403 keeps
// its words.
func plain(err error) error {
	if strings.Contains(err.Error(), "Permission denied") {
		return protocol.Errorf(protocol.CodePermissionDenied, "%w", err)
	}
	return err
}

// examineJobs tries the right to read the jobs of runners.
func (n *Nomad) examineJobs(ctx context.Context, r *finding.Report, namespace string) {
	jobs, _, err := n.api.Jobs().List(query(ctx, namespace))
	err = n.failed("listing the jobs of namespace "+namespace, `namespace "`+namespace+`" { capabilities = ["list-jobs", "read-job"] }`, err)
	if err != nil {
		what, mend := mended(err, "nomad server members")
		r.Bad("nomad.jobs", what, "bivouac explain cannot say what Nomad waits for", mend)
		return
	}
	r.Fine("nomad.jobs", "%d in namespace %s", len(jobs), namespace)
}

// examineNodes tries the right to read nodes, and says which of a pool take no runner.
func (n *Nomad) examineNodes(ctx context.Context, r *finding.Report, pools []string) {
	nodes, _, err := n.api.Nodes().List(query(ctx, ""))
	err = n.failed("listing nodes", `node { policy = "read" }`, err)
	if err != nil {
		what, mend := mended(err, "nomad server members")
		r.Bad("nomad.nodes", what, "turns go to nodes that drain", mend)
		return
	}
	here, bare, away := 0, []string{}, []string{}
	for _, node := range nodes {
		if len(pools) > 0 && !slices.Contains(pools, node.NodePool) {
			continue
		}
		here++
		if d := node.Drivers["raw_exec"]; d == nil || !d.Healthy {
			bare = append(bare, node.Name)
		}
		if s := standingOf(node); s.Text != "" {
			away = append(away, node.Name+": "+s.Text)
		}
	}
	of := "all node pools"
	if len(pools) > 0 {
		of = "node pool " + strings.Join(pools, ", ")
	}
	switch {
	case here == 0:
		r.Warn("nomad.nodes", of+" has no node", "no runner is started", "client { node_pool = \"…\" } in the configuration of the nodes that shall run agents")
	case len(bare) > 0:
		r.Warn("nomad.nodes", "raw_exec is not there on "+strings.Join(bare, ", "), "the job of runners is not placed there", "plugin \"raw_exec\" { config { enabled = true } } in the configuration of those nodes")
	case len(away) > 0:
		r.Warn("nomad.nodes", strings.Join(away, "; "), "runners there are given nothing new", "nomad node status")
	default:
		r.Fine("nomad.nodes", "%d in %s, all ready", here, of)
	}
}

// examineSite compares, by an admin's token, what setup makes, and how Nomad's own agents
// speak to each other.
func (n *Nomad) examineSite(ctx context.Context, r *finding.Report, s Site) {
	all, err := n.Diff(ctx, s)
	if err != nil {
		what, mend := mended(err, "nomad login with a management token; bivouac nomad setup --help says which is used")
		r.Bad("nomad.site", what, "what is missing cannot be said", mend)
		return
	}
	for _, d := range all {
		what := " differs: " + strings.Join(d.Changes, "; ")
		if d.Missing {
			what = " is missing"
		}
		r.Bad("nomad.site", d.Title()+what, d.Without, "bivouac nomad setup"+s.Flags()+"  (shows how), then "+s.Setup())
	}
	if len(all) == 0 {
		r.Fine("nomad.site", "namespace %s, its extra claims, node pools and policies are as they must be", s.Namespace)
	}
	n.examineAgent(r)
}

// examineAgent reads the configuration of the server that answers. Without mutual TLS
// between agents, or without the names of roles in it, whoever reaches the RPC port may
// act as a server, and sign identities.
func (n *Nomad) examineAgent(r *finding.Report) {
	self, err := n.api.Agent().Self()
	if err != nil {
		r.Warn("nomad.rpc", "how Nomad's agents speak to each other cannot be seen: "+err.Error(), "without mutual TLS whoever reaches the RPC port may act as a server", "a token with agent { policy = \"read\" }, or: nomad agent-info")
		return
	}
	tls, _ := self.Config["TLSConfig"].(map[string]any)
	on := func(name string) bool { is, _ := tls[name].(bool); return is }
	switch {
	case !on("EnableRPC"):
		r.Bad("nomad.rpc", "agents speak to each other without TLS", "whoever reaches the RPC port acts as a server: it reads the keys that sign identities", "tls { rpc = true  verify_server_hostname = true … } on all servers and clients")
	case !on("VerifyServerHostname"):
		r.Bad("nomad.rpc", "verify_server_hostname is off", "whoever has a client's certificate acts as a server: it reads the keys that sign identities", "tls { verify_server_hostname = true } on all servers and clients")
	default:
		r.Fine("nomad.rpc", "mutual TLS between agents, with the names of their roles")
	}
}

// standing of a node, in our words.
func standingOf(n *api.NodeListStub) Standing {
	node := fmt.Sprintf("Nomad's node %s", n.Name)
	status := "nomad node status " + short(n.ID)
	switch {
	case n.Status == api.NodeStatusDown:
		return Standing{node + " is down", status}
	case n.Status == api.NodeStatusDisconnected:
		return Standing{node + " is out of Nomad's reach (disconnected)", status}
	case n.Status == api.NodeStatusInit:
		return Standing{node + " is starting", status}
	case n.Drain:
		return Standing{node + " is being drained", "wait until it is over, or: nomad node drain -disable " + short(n.ID)}
	case n.SchedulingEligibility == api.NodeSchedulingIneligible:
		return Standing{node + " takes nothing new (ineligible)", "nomad node eligibility -enable " + short(n.ID)}
	}
	return Standing{}
}

// short is how people name a node.
func short(id string) string { return id[:min(8, len(id))] }

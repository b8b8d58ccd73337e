package intentions

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"bivouac/consul"
	"bivouac/consul/catalog"
	"bivouac/consul/client"
	"bivouac/consul/refused"
	"bivouac/consul/settings"
	"bivouac/edge/finding"
)

const (
	whyAway   = "who may reach what is there: without it nothing new begins, and nothing else takes its place"
	whyRights = "the broker learns by it who may reach what"
	// soon is where a certificate or a token is near its end.
	soon = 24 * time.Hour
	// examineIn bounds the look.
	examineIn = 15 * time.Second
	// nobody is a source that no agent has: names of agents begin otherwise.
	nobody = "bivouac-nobody-"
)

// Examine looks at Consul as the broker does, from the machine where it runs, with the
// broker's own token. It changes nothing.
func (f File) Examine(ctx context.Context, r *finding.Report) {
	anybody, err := client.New(f.Way())
	if r.Err("consul.server", err, whyAway, "edit the consul block of broker.hcl") {
		return
	}
	defer anybody.Close()
	if f.ExamineServer(ctx, r, anybody) {
		f.ExamineBroker(ctx, r)
	}
}

// ExamineBroker asks what the broker's token may, and nothing of the server.
func (f File) ExamineBroker(ctx context.Context, r *finding.Report) {
	c, err := f.Client()
	if r.Err("consul.token", err, whyRights, "edit the consul block of broker.hcl") {
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, examineIn)
	defer cancel()
	if f.examineToken(ctx, r, c) {
		f.examineRights(ctx, r, c)
		f.examineOwn(ctx, r, c)
		catalog.Examine(ctx, r, settings.Broker, f.Config)
	}
}

// examineOwn asks whether the server may call the broker, where that is said in Consul.
func (f File) examineOwn(ctx context.Context, r *finding.Report, c *client.Client) {
	s := f.Service
	if s == nil {
		return
	}
	a, err := c.Match(ctx, s.Name, 0, 0)
	if err != nil {
		return // it is among the rights
	}
	set, err := setOf(s.Name, a.Body)
	if err != nil {
		return
	}
	if d := set.Silent(silent).Decide(s.Peer, s.Name, nil); !d.Allowed {
		r.Bad("consul.own", refused.Sentence(s.Peer, s.Name, d.Reason), "every call of the server is refused", refused.Open(s.Peer, s.Name, d.Reason))
		return
	}
	r.Fine("consul.own", "%s may reach %s", s.Peer, s.Name)
}

// Examine is what a running broker says: what it knows, and what Consul says now.
func (s *Server) Examine(ctx context.Context, r *finding.Report) {
	f := File{}
	for _, w := range s.all() {
		f.Destinations = append(f.Destinations, w.name)
	}
	if late := s.late(); len(late) > 0 {
		r.Bad("consul.answers", strings.Join(late, "\n"), fmt.Sprintf("Consul has not said for more than %s who may reach these, and nothing new begins there", s.p.Fresh), "what is said below, or: consul members")
	} else {
		r.Fine("consul.answers", "what %d destination(s) may be reached by is known, and no older than %s", len(f.Destinations), s.p.Fresh)
	}
	if s.p.Config != nil {
		f.Config = *s.p.Config
		f.Examine(ctx, r)
	}
}

// ExamineServer asks what everybody may ask: whether a server is there, with a leader.
func (f File) ExamineServer(ctx context.Context, r *finding.Report, c *client.Client) bool {
	ctx, cancel := context.WithTimeout(ctx, examineIn)
	defer cancel()
	var leader string
	a, err := c.Get(ctx, "status/leader", &leader)
	switch {
	case err != nil:
		r.Bad("consul.server", err.Error(), whyAway, cmp.Or(client.Mend(err), "consul members"))
		return false
	case leader == "":
		r.Bad("consul.server", c.Address()+" knows no leader", whyAway, "consul operator raft list-peers")
		return false
	}
	if end := a.CertificateEnd; !end.IsZero() && time.Until(end) < soon {
		r.Warn("consul.tls", fmt.Sprintf("Consul's certificate ends at %s", end.UTC().Format(time.RFC3339)), "from then on it is not believed, and "+whyAway, "consul tls cert create -server, or what else makes its certificates")
	}
	said := "over TLS"
	if a.CertificateEnd.IsZero() {
		said = "without TLS, as the agent of this machine"
	}
	r.Fine("consul.server", "%s %s, its leader is %s", c.Address(), said, leader)
	if !a.Date.IsZero() {
		r.Clock("Consul", a.Date, time.Now(), time.Second)
	}
	f.examineVersion(ctx, r, c)
	return true
}

// leastVersion answers what is asked here.
var leastVersion = [2]int{1, 14}

// examineVersion says it where the token may know it; the broker's need not.
func (f File) examineVersion(ctx context.Context, r *finding.Report, c *client.Client) {
	var self struct{ Config struct{ Version string } }
	if _, err := c.Get(ctx, "agent/self", &self); err != nil || self.Config.Version == "" {
		return // it is asked with the admin's token by bivouac consul check
	}
	var is [2]int
	if _, err := fmt.Sscanf(self.Config.Version, "%d.%d", &is[0], &is[1]); err == nil && slices.Compare(is[:], leastVersion[:]) < 0 {
		r.Bad("consul.version", "Consul is "+self.Config.Version, fmt.Sprintf("releases before %d.%d are not known to answer all that is asked", leastVersion[0], leastVersion[1]), "a newer release of Consul")
		return
	}
	r.Fine("consul.version", "%s", self.Config.Version)
}

// examineToken asks what the token is, which every token may.
func (f File) examineToken(ctx context.Context, r *finding.Report, c *client.Client) bool {
	another := f.Another() + "  (as an admin of Consul)"
	if f.TokenFile == "" {
		r.Warn("consul.token", "no token_file: Consul is asked as nobody", "where access control is on, it says nothing then; where it is off, whoever reaches it may write intentions", another)
		return true
	}
	h, err := c.Holder(ctx)
	switch {
	case err != nil && strings.Contains(err.Error(), "ACL support disabled"):
		r.Warn("consul.token", "access control of Consul is off", "whoever reaches it may write intentions", "acl { enabled = true  default_policy = \"deny\" } in the configuration of its servers")
		return true
	case err != nil:
		what, mend := f.Lacks(ctx, c, err)
		r.Bad("consul.token", what, whyRights, cmp.Or(mend, another))
		return false
	}
	if h.Mighty() {
		r.Warn("consul.token", h.String()+" "+f.TokenFrom()+" may do everything in Consul", "whoever takes over the broker could open every path", another)
	}
	if !h.Ends.IsZero() && time.Until(h.Ends) < soon {
		r.Warn("consul.token", h.String()+" "+f.TokenFrom()+" ends soon", "from then on nothing new begins", another)
	}
	r.Fine("consul.token", "%s %s", h, f.TokenFrom())
	return true
}

// examineRights asks about every destination, as the broker does, and holds Consul's own
// verdict about a stranger against what follows from the intentions.
func (f File) examineRights(ctx context.Context, r *finding.Report, c *client.Client) {
	var refused, broken []string
	stranger := nobody + strings.ToLower(rand.Text()[:8])
	open, closed := "", false
	mend := ""
	for _, name := range f.Destinations {
		a, err := c.Match(ctx, name, 0, 0)
		if err != nil {
			if mend == "" { // whose token it is, and what it has, is said once
				var what string
				what, mend = f.Lacks(ctx, c, err)
				refused = append(refused, name+": "+what)
				continue
			}
			refused = append(refused, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		set, err := setOf(name, a.Body)
		if err != nil {
			refused = append(refused, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		d := set.Silent(silent).Decide(stranger, name, &consul.Request{Method: http.MethodGet, Path: "/"})
		if strings.Contains(d.Reason, "cannot be enforced here") {
			broken = append(broken, name+": "+d.Reason)
		} else if !d.Allowed && d.Reason == silent && !closed {
			theirs, err := c.Check(ctx, stranger, name)
			if err == nil && theirs {
				open = name
			}
			closed = err == nil
		}
	}
	if len(refused) > 0 {
		r.Bad("consul.rights", strings.Join(refused, "\n"), "nothing may reach these destinations", cmp.Or(mend, f.Setup()+"  (as an admin of Consul)"))
	} else {
		r.Fine("consul.rights", "the intentions of all %d destination(s) can be read, asked one by one", len(f.Destinations))
	}
	if len(broken) > 0 {
		r.Bad("consul.intentions", strings.Join(broken, "\n"), "nothing may reach these destinations", "consul config read -kind service-intentions -name NAME, and take that out")
	}
	switch {
	case open != "":
		r.Warn("consul.default", "Consul lets a stranger reach "+open+", because nothing says otherwise", "the broker denies it all the same; other members of the mesh do not", f.Setup()+"  (makes the intention * => * deny), and acl { default_policy = \"deny\" }")
	case closed:
		r.Fine("consul.default", "what no intention allows is denied, by Consul too")
	}
}

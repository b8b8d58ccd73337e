package catalog

import (
	"cmp"
	"context"
	"time"

	"bivouac/consul/client"
	"bivouac/consul/settings"
	"bivouac/edge/finding"
	"bivouac/edge/protocol"
)

// examineIn bounds the look.
const examineIn = 15 * time.Second

const whyMember = "others do not find it in Consul, and with a mesh block the link between server and broker is closed"

// Examine tries the right to a process' own service, by asking for its leaf, which every
// such token may have. It changes nothing that anybody sees.
func Examine(ctx context.Context, r *finding.Report, of settings.Of, c settings.Config) {
	if c.Service == nil {
		return
	}
	asked, err := c.Client()
	if r.Err("consul.service", err, whyMember, "edit the consul block of "+string(of)+".hcl") {
		return
	}
	defer asked.Close()
	ctx, cancel := context.WithTimeout(ctx, examineIn)
	defer cancel()
	var leaf struct{ ValidBefore time.Time }
	_, err = asked.Held(ctx, "agent/connect/ca/leaf/"+c.Service.Name, 0, 0, &leaf)
	switch {
	case client.KindOf(err) == client.Disabled && c.Mesh == nil:
		r.Warn("consul.service", "Consul's mesh is off, so that the right to the service "+c.Service.Name+" was not tried", "intentions count for nothing in such a Consul", cmp.Or(client.Mend(err), c.Setup()))
	case err != nil:
		what, mend := c.Lacks(ctx, asked, err)
		r.Bad("consul.service", what, whyMember, cmp.Or(mend, c.Setup()))
	case c.Mesh != nil && time.Until(leaf.ValidBefore) < time.Hour:
		r.Warn("consul.mesh", "the leaf of "+c.Service.Name+" ends at "+leaf.ValidBefore.UTC().Format(time.RFC3339), "without another one the link is closed then", "consul connect ca get-config  (leaf_cert_ttl), and Consul's log")
	case c.Mesh != nil:
		r.Fine("consul.mesh", "the leaf of %s can be had, until %s", c.Service.Name, leaf.ValidBefore.UTC().Format(time.RFC3339))
	default:
		r.Fine("consul.service", "the token may write the service %s", c.Service.Name)
	}
}

// ExamineServer is the look of a server, which asks Consul for nothing but to be a service
// there.
func ExamineServer(ctx context.Context, r *finding.Report, c settings.Config) {
	if c.Service == nil {
		r.Warn("consul.service", "the consul block of server.hcl has no service block", "it does nothing", "add service {} to it, or take it out")
		return
	}
	var leader string
	anybody, err := client.New(c.Way())
	if err == nil {
		defer anybody.Close()
		limit, cancel := context.WithTimeout(ctx, examineIn)
		defer cancel()
		if _, err = anybody.Get(limit, "status/leader", &leader); err == nil && leader == "" {
			err = protocol.Errorf(protocol.CodeUnavailable, "%s knows no leader", c.Address)
		}
	}
	if err != nil {
		r.Bad("consul.server", err.Error(), whyMember, cmp.Or(client.Mend(err), "consul members"))
		return
	}
	r.Fine("consul.server", "%s, its leader is %s", c.Address, leader)
	Examine(ctx, r, settings.Server, c)
}

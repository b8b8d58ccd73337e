package plan

import (
	"context"
	"maps"

	"bivouac/consul/client"
	"bivouac/edge/protocol"
)

// Apply makes what differs as the plan says. What was applied before a failure stays:
// applying again goes on from there. done is called after each. What stands in the way is
// an error before anything is written.
func (d Diff) Apply(ctx context.Context, c *client.Client, done func(Difference)) error {
	for _, x := range d {
		if x.State == InTheWay {
			return protocol.Errorf(protocol.CodeConflict, "%s", x.Refusal())
		}
	}
	for _, x := range d {
		if err := x.apply(ctx, c); err != nil {
			return protocol.Errorf(protocol.CodeOf(err), "%s cannot be applied: %w", x.Title(), err)
		}
		if done != nil {
			done(x)
		}
	}
	return nil
}

// wayOut of what stands in the way.
var wayOut = map[Kind]string{
	DefaultDeny: "Whoever it belongs to takes it out with consul intention delete '*' '*', and bivouac consul setup --apply makes the deny",
	Protocol:    "Another service has the name: call the destination otherwise in broker.hcl",
}

func (x Difference) apply(ctx context.Context, c *client.Client) error {
	switch x.Kind {
	case Policy:
		body := map[string]any{"Name": x.Name, "Rules": x.Want, "Description": "Bivouac"}
		if x.id != "" {
			body["ID"] = x.id
			return c.Put(ctx, "acl/policy/"+x.id, nil, body)
		}
		return c.Put(ctx, "acl/policy", nil, body)
	case Role:
		body := map[string]any{"Name": x.Name, "Description": "Bivouac"}
		path := "acl/role"
		if x.id != "" {
			body, path = maps.Clone(x.entry), "acl/role/"+x.id
		}
		body["Policies"] = appended(body["Policies"], map[string]any{"Name": x.Want})
		return c.Put(ctx, path, nil, body)
	case DefaultDeny:
		body := orNew(x.entry, "service-intentions", "*")
		body["Sources"] = appended(body["Sources"], denyAll(x.Want))
		return c.Put(ctx, "config", &x.index, body)
	}
	body := orNew(x.entry, "service-defaults", x.Name)
	body["Protocol"] = x.Want
	return c.Put(ctx, "config", &x.index, body)
}

// orNew is an entry that is there, with everything in it, or one of the name.
func orNew(have map[string]any, kind, name string) map[string]any {
	if have == nil {
		return map[string]any{"Kind": kind, "Name": name, "Meta": map[string]string{"owner": "bivouac"}}
	}
	return maps.Clone(have)
}

func appended(have any, more map[string]any) []any {
	all, _ := have.([]any)
	return append(append([]any{}, all...), more)
}

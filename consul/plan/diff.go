package plan

import (
	"context"
	"strings"

	"bivouac/consul/client"
	"bivouac/edge/protocol"
)

// ErrNoACL is a Consul without access control: it has no policies and no roles, and
// whoever reaches it may write intentions.
var ErrNoACL = protocol.Errorf(protocol.CodeFailedPrecondition, "access control of Consul is off")

// NoACL reports an error that says so.
func NoACL(err error) bool {
	return err != nil && strings.Contains(strings.ToLower(err.Error()), "acl support disabled")
}

// Diff compares Consul with the plan. It changes nothing. Without access control the
// policy and the role are left out, and open is true.
func (p Plan) Diff(ctx context.Context, c *client.Client) (out Diff, open bool, err error) {
	// Consul says of a policy that is not there what it says of a token that is none.
	if _, err := c.Get(ctx, "acl/token/self", new(any)); NoACL(err) {
		open = true
	} else if err != nil {
		return nil, false, err
	}
	for _, item := range p.Items {
		if open && (item.Kind == Policy || item.Kind == Role) {
			continue
		}
		x, err := item.compare(ctx, c)
		if err != nil {
			return nil, open, protocol.Errorf(protocol.CodeOf(err), "%s cannot be compared: %w", item.Title(), err)
		}
		if x != nil {
			out = append(out, *x)
		}
	}
	return out, open, nil
}

// compare returns nil where nothing differs.
func (i Item) compare(ctx context.Context, c *client.Client) (*Difference, error) {
	switch i.Kind {
	case Policy:
		return i.comparePolicy(ctx, c)
	case Role:
		return i.compareRole(ctx, c)
	case DefaultDeny:
		return i.compareDeny(ctx, c)
	}
	return i.compareProtocol(ctx, c)
}

// absent reports that nothing is there.
func absent(err error) bool {
	k := client.KindOf(err)
	return k == client.Absent || k == client.NoToken
}

func (i Item) comparePolicy(ctx context.Context, c *client.Client) (*Difference, error) {
	var have struct{ ID, Rules string }
	_, err := c.Get(ctx, "acl/policy/name/"+i.Name, &have)
	switch {
	case absent(err) || err == nil && have.ID == "":
		return &Difference{Item: i, State: Missing}, nil
	case err != nil:
		return nil, err
	case have.Rules == i.Want:
		return nil, nil
	case len(foreign(have.Rules, i.Want)) > 0:
		return &Difference{Item: i, State: InTheWay, Have: have.Rules, id: have.ID}, nil
	}
	return &Difference{Item: i, State: Differs, Have: have.Rules, id: have.ID}, nil
}

func (i Item) compareRole(ctx context.Context, c *client.Client) (*Difference, error) {
	var have map[string]any
	_, err := c.Get(ctx, "acl/role/name/"+i.Name, &have)
	id, _ := have["ID"].(string)
	switch {
	case absent(err) || err == nil && id == "":
		return &Difference{Item: i, State: Missing}, nil
	case err != nil:
		return nil, err
	}
	var names []string
	for _, p := range list(have["Policies"]) {
		name, _ := p["Name"].(string)
		if name == i.Want {
			return nil, nil
		}
		names = append(names, name)
	}
	return &Difference{Item: i, State: Differs, Have: strings.Join(names, ", "), entry: have, id: id}, nil
}

// entry reads a config entry; nil where there is none.
func entry(ctx context.Context, c *client.Client, kind, name string) (have map[string]any, index uint64, err error) {
	_, err = c.Get(ctx, "config/"+kind+"/"+name, &have)
	if client.KindOf(err) == client.Absent {
		return nil, 0, nil
	}
	n, _ := have["ModifyIndex"].(float64)
	return have, uint64(n), err
}

func list(v any) (out []map[string]any) {
	items, _ := v.([]any)
	for _, i := range items {
		if m, ok := i.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

func (i Item) compareDeny(ctx context.Context, c *client.Client) (*Difference, error) {
	have, index, err := entry(ctx, c, "service-intentions", "*")
	if err != nil {
		return nil, err
	}
	for _, s := range list(have["Sources"]) {
		if s["Name"] != "*" {
			continue
		}
		action, _ := s["Action"].(string)
		if action == i.Want {
			return nil, nil
		}
		return &Difference{Item: i, State: InTheWay, Have: action, entry: have, index: index}, nil
	}
	return &Difference{Item: i, State: Missing, entry: have, index: index}, nil
}

func (i Item) compareProtocol(ctx context.Context, c *client.Client) (*Difference, error) {
	have, index, err := entry(ctx, c, "service-defaults", i.Name)
	if err != nil {
		return nil, err
	}
	protocol, _ := have["Protocol"].(string)
	switch {
	case have == nil:
		return &Difference{Item: i, State: Missing}, nil
	case protocol == "http" || protocol == "http2" || protocol == "grpc":
		return nil, nil
	case protocol == "":
		return &Difference{Item: i, State: Differs, Have: protocol, entry: have, index: index}, nil
	}
	return &Difference{Item: i, State: InTheWay, Have: protocol, entry: have, index: index}, nil
}

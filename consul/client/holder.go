package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"bivouac/edge/legible"
)

// Holder is whose a token is, as Consul says it. The token itself is nowhere in it.
type Holder struct {
	Accessor, Name  string
	Policies, Roles []string
	Ends            time.Time // zero: it does not end
}

// Management is the policy that may do everything.
const Management = "global-management"

// anonymous is who asks without a token.
const anonymous = "00000000-0000-0000-0000-000000000002"

// Holder asks who the token is, which every token may.
func (c *Client) Holder(ctx context.Context) (Holder, error) {
	var self struct {
		AccessorID        string
		Description       string
		ExpirationTime    *time.Time
		Policies          []struct{ Name string }
		Roles             []struct{ Name string }
		ServiceIdentities []struct{ ServiceName string }
		NodeIdentities    []struct{ NodeName string }
	}
	if _, err := c.Get(ctx, "acl/token/self", &self); err != nil {
		return Holder{}, err
	}
	h := Holder{Accessor: self.AccessorID, Name: self.Description}
	if self.ExpirationTime != nil {
		h.Ends = *self.ExpirationTime
	}
	for _, p := range self.Policies {
		h.Policies = append(h.Policies, p.Name)
	}
	for _, s := range self.ServiceIdentities {
		h.Policies = append(h.Policies, "service identity "+s.ServiceName)
	}
	for _, n := range self.NodeIdentities {
		h.Policies = append(h.Policies, "node identity "+n.NodeName)
	}
	for _, r := range self.Roles {
		h.Roles = append(h.Roles, r.Name)
	}
	return h, nil
}

// Nobody reports that Consul is asked without a token.
func (h Holder) Nobody() bool { return h.Accessor == anonymous }

// Has reports that the token has a role or a policy of the name.
func (h Holder) Has(name string) bool {
	return slices.Contains(h.Roles, name) || slices.Contains(h.Policies, name)
}

// Mighty reports a token that may do everything.
func (h Holder) Mighty() bool { return slices.Contains(h.Policies, Management) }

// String names it: its description, accessor, roles, policies and end.
func (h Holder) String() string {
	if h.Nobody() {
		return "nobody's token (anonymous, " + h.rights() + ")"
	}
	text := fmt.Sprintf("the token %q (accessor %s, %s", legible.Line(h.Name), h.Accessor, h.rights())
	if !h.Ends.IsZero() {
		text += ", until " + h.Ends.UTC().Format(time.RFC3339)
	}
	return text + ")"
}

func (h Holder) rights() string {
	var all []string
	for _, name := range h.Roles {
		all = append(all, "role "+legible.Line(name))
	}
	for _, name := range h.Policies {
		all = append(all, "policy "+legible.Line(name))
	}
	if len(all) == 0 {
		return "no roles and no policies"
	}
	return strings.Join(all, ", ")
}

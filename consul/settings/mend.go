package settings

import (
	"cmp"
	"context"
	"path/filepath"

	"bivouac/consul/client"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
)

// Role that the process' token needs, which setup makes, with a policy of the same name.
// The server's has the name of its service.
func (c Config) Role() string {
	if c.of == Server && c.Service != nil {
		return c.Service.Name
	}
	return cmp.Or(c.role, DefaultName(c.of))
}

// Called says with which flags the command line was called, for the commands that it
// names, and for which role.
func (c Config) Called(flags, role string) Config {
	c.flags, c.role = &flags, role
	return c
}

// Setup is the command of an admin that makes what Consul must have.
func (c Config) Setup() string { return "bivouac consul setup --apply" + c.Flags() }

// Flags of the commands that are about this configuration.
func (c Config) Flags() string {
	switch {
	case c.flags != nil:
		return *c.flags
	case c.of == Server || c.file == "": // it is the broker's file that is meant
		return ""
	}
	path := c.file
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return " --broker-config " + shellword.Quote(path)
}

// Another is the command that makes a token with the role, and puts it where the process
// reads it.
func (c Config) Another() string {
	into, more := "FILE", ", and token_file = \"FILE\" in the consul block"
	if path := c.TokenPath(); path != "" {
		if abs, err := filepath.Abs(path); err == nil && c.flags == nil {
			path = abs // whoever reads it is not where the process began
		}
		into, more = shellword.Quote(path), ""
	}
	return c.MakeToken(c.Role(), into) + more
}

// MakeToken is the command that makes a token with a role, into a file as a shell reads it.
func (Config) MakeToken(role, into string) string {
	return "(umask 077; consul acl token create -role-name " + shellword.Quote(role) + " -format json | jq -r .SecretID > " + into + ")"
}

// TokenFrom says where the process' token is, and who says so.
func (c Config) TokenFrom() string {
	if c.TokenFile == "" {
		return "without a token_file"
	}
	if c.fromEnv {
		return "in " + c.TokenPath() + " (CONSUL_HTTP_TOKEN_FILE names it)"
	}
	return "in " + c.TokenPath()
}

// Lacks says of an error with the process' token what it is about: whose token lacks
// what, or which file holds none, and the command that mends that.
func (c Config) Lacks(ctx context.Context, asked *client.Client, err error) (what, mend string) {
	switch client.KindOf(err) {
	case client.NoToken:
		return c.noToken(err), protocol.Mend(err, c.Another()+"  (as "+c.admin()+"; the file is read again for every request)")
	case client.Refused:
		h, asking := asked.Holder(ctx)
		if asking != nil {
			return err.Error(), client.Mend(err)
		}
		return h.String() + " " + c.TokenFrom() + " lacks a right: " + err.Error(), c.mendRight(h)
	}
	return err.Error(), client.Mend(err)
}

// noToken tells a file that cannot be used from a token that Consul does not know.
func (c Config) noToken(err error) string {
	if client.Answered(err) {
		return "Consul knows no token of that " + c.TokenFrom() + ": it has expired, was deleted when it was rotated, or is another Consul's: " + err.Error()
	}
	return err.Error()
}

// mendRight of a token that Consul knows: setup where it has the role, whose policy lacks
// a rule; otherwise a token that has it.
func (c Config) mendRight(h client.Holder) string {
	role := c.Role()
	if h.Has(role) {
		return c.Setup() + "  (as " + c.admin() + ": the policy " + role + ", which the token has, lacks the rule, or is not there)"
	}
	more := ""
	if c.of == Broker && c.role == "" && len(h.Roles) == 1 {
		more = "; where the broker was set up as " + h.Roles[0] + ": " + c.Setup() + " --name " + shellword.Quote(h.Roles[0])
	}
	return c.Another() + "  (as " + c.admin() + ": the token has not the role " + role + "; if `consul acl role read -name " + role + "` finds none, before it: " + c.Setup() + more + ")"
}

// admin is who mends.
func (c Config) admin() string {
	if c.of == Server {
		return "an admin of Consul, where the broker's broker.hcl is"
	}
	return "an admin of Consul"
}

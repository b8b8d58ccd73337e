package plan

import (
	"slices"
	"strings"
	"time"

	"bivouac/server/broker/issued"
)

// Bare is the command of a certificate that asks for none: it does nothing, and fails.
const Bare = "/bin/false"

// unsigned is what an engine of SSH says that has no key yet.
const unsigned = "keys haven't been configured"

// ssh is an engine of SSH that signs certificates of users: its mount, its key, which
// never leaves it, and a role that gives no more than one command for minutes.
func (p *Plan) ssh(f *issued.From) {
	add := func(i Item) { // an engine may have several roles
		if !slices.ContainsFunc(p.Items, func(have Item) bool { return have.Path == i.Path }) {
			p.add(i)
		}
	}
	why := "no certificate of SSH is signed by the " + f.String()
	add(Item{
		Kind: "mount", Name: f.Mount, Path: "sys/mounts/" + f.Mount, ReadPath: "sys/mounts", Key: f.Mount + "/", For: why, Fixed: true,
		Want: map[string]any{"type": issued.SSH}, Creates: map[string]any{"description": "Bivouac"},
	})
	add(Item{
		Kind: "key of", Name: f.Mount, Path: f.Mount + "/config/ca", For: why, Fixed: true, Unless: unsigned,
		Want: map[string]any{}, Creates: map[string]any{"generate_signing_key": true, "key_type": "ed25519"},
	})
	add(Item{
		Kind: "role", Name: f.Mount + "/" + f.Role, Path: f.RolePath(), For: why,
		Want: map[string]any{
			"key_type": "ca", "allow_user_certificates": true, "allow_host_certificates": false, "allow_user_key_ids": true,
			"allowed_users": strings.Join(f.Principals, ","), "allowed_critical_options": issued.ForceCommand,
			"default_critical_options": map[string]any{issued.ForceCommand: Bare},
			"allowed_extensions":       "", "default_extensions": map[string]any{},
			"ttl": f.Life(), "max_ttl": max(f.Life(), 5*time.Minute),
		},
	})
}

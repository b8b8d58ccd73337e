package vaultpolicy

import (
	"strings"
	"testing"

	"bivouac/edge/finding"
	"bivouac/server/broker/issued"
)

// A role of SSH that signs for more than the broker asks of it gives too much, and check
// says whom. The twins sign for those alone.
func TestRoleForMoreUsers(t *testing.T) {
	from := (&issued.From{Engine: issued.SSH, Role: "deploy", Principals: []string{"deploy", "backup"}}).WithDefaults()
	for _, tc := range []struct {
		users    any
		also     string
		template bool
		more     string
	}{
		{users: "deploy,backup"},
		{users: []any{"backup", "deploy"}},
		{users: "deploy", also: "backup"},
		{users: "deploy,backup,{{identity.entity.name}}", template: true},
		{users: "*", more: "*"},
		{users: "deploy, backup, root", more: "root"},
		{users: "deploy,backup", also: "root", more: "root"},
		{users: "*,root", also: "deploy", more: "*, root"},
		{users: "deploy,backup,root,{{identity.entity.name}}", template: true, more: "root"},
	} {
		r := finding.From("here")
		fine := examineSSH(r, "web1-ssh", from, map[string]any{
			"key_type": "ca", "allow_user_certificates": true, "allow_user_key_ids": true, "allowed_users": tc.users, "default_user": tc.also, "allowed_users_template": tc.template, "allowed_critical_options": "force-command",
			"default_critical_options": map[string]any{"force-command": "/bin/false"}, "ttl": float64(60), "max_ttl": float64(300),
		})
		if fine != (tc.more == "") || fine != (len(r.All) == 0) {
			t.Errorf("%+v: fine %t, %+v", tc, fine, r.All)
			continue
		}
		if !fine && (len(r.All) != 1 || !strings.Contains(r.All[0].What, "of the broker's block: "+tc.more) || !strings.Contains(r.All[0].Mend, "allowed_users=deploy,backup")) {
			t.Errorf("%+v: %+v", tc, r.All)
		}
	}
}

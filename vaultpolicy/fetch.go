package vaultpolicy

import (
	"fmt"
	"path/filepath"

	"bivouac/vaultpolicy/login"
)

// wrapTTL is how long a secret that is carried to the broker's machine may be on its
// way.
const wrapTTL = "120s"

// Fetch is how the broker gets what it logs in with, as commands of the server's own
// command line: empty for methods whose secret is not the server's.
func (c Config) Fetch() string {
	n := c.names()
	switch c.Auth.Method {
	case login.AppRole:
		role := "auth/" + c.Auth.Mount + "/role/" + c.Auth.Role
		return fmt.Sprintf(`vault read -field=role_id %[1]s/role-id > %[2]s
vault write -force -wrap-ttl=%[3]s -field=wrapping_token %[1]s/secret-id > wrapped
# carry both files to the broker's machine, and there, as the broker's user:
umask 077
VAULT_TOKEN="$(cat wrapped)" vault unwrap -field=secret_id > %[4]s && rm wrapped
# a refused unwrap means that somebody else was faster: throw the secret id away, and look who
# asked in the audit log`, role, or(filepath.Base(c.Auth.RoleIDFile), "role-id"), wrapTTL, c.path(c.Auth.SecretIDFile))
	case login.Token:
		return fmt.Sprintf(`vault token create -role=%[1]s -policy=%[1]s -policy=%[2]s -wrap-ttl=%[3]s -field=wrapping_token > wrapped
# carry it to the broker's machine, and there, as the broker's user:
umask 077
VAULT_TOKEN="$(cat wrapped)" vault unwrap -field=token > %[4]s && rm wrapped`, n.BrokerPolicy(), n.RoutesPolicy(), wrapTTL, c.path(c.Auth.File))
	}
	return ""
}

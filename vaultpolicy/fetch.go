package vaultpolicy

import (
	"fmt"

	"bivouac/vaultpolicy/login"
	"bivouac/vaultpolicy/plan"
)

// wrapTTL is how long a secret that is carried to the broker's machine may be on its
// way.
const wrapTTL = "120s"

// Fetch is how the broker gets what it logs in with, as commands of the server's own
// command line: empty for methods whose secret is not the server's.
func (c Config) Fetch() string {
	text := c.fetch()
	if text == "" || c.Namespace == "" {
		return text
	}
	return "export VAULT_NAMESPACE=" + plan.Quote(c.Namespace) + "   # on both machines\n" + text
}

func (c Config) fetch() string {
	n := c.names()
	switch c.Auth.Method {
	case login.AppRole:
		role := "auth/" + c.Auth.Mount + "/role/" + c.Auth.Role
		if c.Auth.SecretIDWrapped != "" {
			return fmt.Sprintf(`umask 077
vault read -field=role_id %[1]s/role-id > role-id
vault write -force -wrap-ttl=%[2]s -field=wrapping_token %[1]s/secret-id > wrapped
# carry both to the broker's machine, and there, as the broker's user:
umask 077
cat wrapped > %[3]s.new && mv %[3]s.new %[3]s
# the broker opens it within %[2]s, or says who was faster: bivouac-broker doctor`, role, wrapTTL, c.path(c.Auth.SecretIDWrapped)) + c.roleID()
		}
		return fmt.Sprintf(`umask 077
vault read -field=role_id %[1]s/role-id > role-id
vault write -force -wrap-ttl=%[2]s -field=wrapping_token %[1]s/secret-id > wrapped
# carry both to the broker's machine, and there, as the broker's user:
umask 077
vault write -field=creation_path sys/wrapping/lookup token=@wrapped   # %[1]s/secret-id, and nothing else
VAULT_TOKEN="$(cat wrapped)" vault unwrap -field=secret_id > %[3]s.new && mv %[3]s.new %[3]s && rm wrapped
# an unwrap that is refused within %[2]s: somebody else was faster. Take that secret id back, and look in
# the audit log who it was.`, role, wrapTTL, c.path(c.Auth.SecretIDFile)) + c.roleID()
	case login.Token:
		return fmt.Sprintf(`umask 077
vault token create -role=%[1]s -wrap-ttl=%[2]s -field=wrapping_token > wrapped
# carry it to the broker's machine, and there, as the broker's user:
umask 077
vault write -field=creation_path sys/wrapping/lookup token=@wrapped   # auth/token/create/%[1]s, and nothing else
VAULT_TOKEN="$(cat wrapped)" vault unwrap -field=token > %[3]s.new && mv %[3]s.new %[3]s && rm wrapped`,
			n.BrokerPolicy(), wrapTTL, c.path(c.Auth.File))
	}
	return ""
}

// roleID says where the role id goes.
func (c Config) roleID() string {
	if c.Auth.RoleIDFile == "" {
		return "\n# role-id is the value of role_id in the auth block"
	}
	to := c.path(c.Auth.RoleIDFile)
	return "\ncat role-id > " + to + ".new && mv " + to + ".new " + to
}

package vaultpolicy

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"bivouac/edge/finding"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
)

// longTTL is where a role signs for longer than an action needs.
const longTTL = 15 * time.Minute

// examineSSH holds a role of SSH against what the broker takes: what it lacks, no action
// gets; what it gives too much, whoever else may sign there has.
func examineSSH(r *finding.Report, name string, from *issued.From, data map[string]any) bool {
	what, mend := "the "+from.String(), "vault write "+from.RolePath()+" "
	const whole = "  (with the role's other fields: vault read "
	bad := func(is bool, says, fields string) bool {
		if is {
			r.Bad("vault.engines", what+" "+says, "no action gets the credential "+name, mend+fields+whole+from.RolePath()+")")
		}
		return is
	}
	warn := func(is bool, says, why, fields string) bool {
		if is {
			r.Warn("vault.engines", what+" "+says, why, mend+fields+whole+from.RolePath()+")")
		}
		return is
	}
	missing := slices.DeleteFunc(slices.Clone(from.Principals), func(p string) bool { return allowsUser(data, p) })
	options, wide := textsOf(data["allowed_critical_options"]), slices.Sorted(maps.Keys(client.Map(data["default_extensions"])))
	switch {
	case bad(client.Text(data["key_type"]) != "ca", "signs no certificates (key_type)", "key_type=ca"),
		bad(!client.Flag(data["allow_user_certificates"]), "signs no certificates of users", "allow_user_certificates=true"),
		bad(!client.Flag(data["allow_user_key_ids"]), "lets nobody name the action in a certificate", "allow_user_key_ids=true"),
		bad(len(missing) > 0, "does not sign for the principals "+strings.Join(missing, ", "), "allowed_users="+strings.Join(from.Principals, ",")),
		bad(len(options) > 0 && !slices.Contains(options, issued.ForceCommand), "binds no certificate to a command", "allowed_critical_options="+issued.ForceCommand),
		bad(len(wide) > 0, "gives every certificate "+strings.Join(wide, ", ")+", and the broker refuses what is so wide", "default_extensions='{}'"):
		return false
	}
	most := max(client.Seconds(data["max_ttl"]), client.Seconds(data["ttl"]))
	long := warn(most == 0 || most > longTTL, "signs for longer than "+longTTL.String(), "a certificate cannot be taken back, and ends by its time alone", "ttl="+from.TTL+" max_ttl=5m")
	loose := warn(len(textsOf(data["allowed_extensions"])) > 0, "lets whoever signs ask for "+strings.Join(textsOf(data["allowed_extensions"]), ", "), "a certificate that others have signed there may have a terminal, or forward", "allowed_extensions=''")
	free := warn(client.Text(client.Map(data["default_critical_options"])[issued.ForceCommand]) == "", "binds a certificate that asks for nothing to no command", "whoever may sign there may have a shell", `default_critical_options='{"force-command":"/bin/false"}'  (as JSON: vault write … - )`)
	hosts := warn(client.Flag(data["allow_host_certificates"]), "signs certificates of hosts too", "whoever may sign there passes for a host", "allow_host_certificates=false")
	more := moreUsers(from, data)
	whom := warn(len(more) > 0, "signs for more than the principals "+strings.Join(from.Principals, ", ")+" of the broker's block: "+strings.Join(more, ", "), "whoever may sign there signs in as anybody of them (\"*\" is everybody, root too)", "allowed_users="+strings.Join(from.Principals, ","))
	return !long && !loose && !free && !hosts && !whom
}

// moreUsers that a role signs for, beside those that the broker asks for.
func moreUsers(from *issued.From, role map[string]any) []string {
	users := append(textsOf(role["allowed_users"]), textsOf(role["default_user"])...)
	slices.Sort(users)
	return slices.DeleteFunc(slices.Compact(users), func(u string) bool {
		return slices.Contains(from.Principals, u) || client.Flag(role["allowed_users_template"]) && strings.Contains(u, "{{")
	})
}

// allowsUser reports a principal that a role signs for. One with a template decides
// at the server, and is left to it.
func allowsUser(role map[string]any, principal string) bool {
	users := append(textsOf(role["allowed_users"]), client.Text(role["default_user"]))
	return client.Flag(role["allowed_users_template"]) || slices.Contains(users, "*") || slices.Contains(users, principal)
}

// textsOf a field that is a text with commas, or a list.
func textsOf(v any) (out []string) {
	for _, text := range append(client.Texts(v), strings.Split(client.Text(v), ",")...) {
		if text = strings.TrimSpace(text); text != "" {
			out = append(out, text)
		}
	}
	return out
}

// examineCA looks at the key that an engine of SSH signs with.
func examineCA(ctx context.Context, r *finding.Report, name string, from *issued.From, c *client.Client, as secret.Value) bool {
	if from.Engine != issued.SSH {
		return true
	}
	path, why := from.Mount+"/config/ca", "no action gets the credential "+name
	a, err := c.Read(ctx, as, path)
	switch client.KindOf(err) {
	case client.Refused:
		r.Warn("vault.engines", "your token may not read "+path, "whether it is the key of ca_keys is not known", "a token that may: vault read "+path)
		return false
	case client.Invalid, client.Absent:
		r.Bad("vault.engines", "the ssh engine at "+from.Mount+"/ has no key to sign with", why, "vault write "+path+" generate_signing_key=true key_type=ed25519")
		return false
	}
	if err != nil {
		r.Bad("vault.engines", err.Error(), why, client.Mend(err))
		return false
	}
	keys, err := issued.PublicKeys([]string{client.Text(a.Data["public_key"])})
	if err != nil {
		r.Bad("vault.engines", fmt.Sprintf("the key of the ssh engine at %s/ cannot be read", from.Mount), why, "vault read "+path)
		return false
	}
	known, err := issued.PublicKeys(from.CAKeys)
	if err == nil && len(known) > 0 && !slices.ContainsFunc(known, func(k ssh.PublicKey) bool { return bytes.Equal(k.Marshal(), keys[0].Marshal()) }) {
		r.Bad("vault.engines", fmt.Sprintf("the ssh engine at %s/ signs with the key %s, which ca_keys of the credential %s does not have", from.Mount, ssh.FingerprintSHA256(keys[0]), name), why, "whoever changed it knows why: vault read -field=public_key "+path+", then ca_keys in broker.hcl, and TrustedUserCAKeys on the hosts")
		return false
	}
	return true
}

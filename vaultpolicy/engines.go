package vaultpolicy

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"bivouac/edge/finding"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
)

// ExamineEngines looks, with an admin's token, at the engines that issue credentials.
// They are the admin's: setup makes none, and the broker's login does not see them.
func (f File) ExamineEngines(ctx context.Context, r *finding.Report, c *client.Client, as secret.Value) {
	good := 0
	for _, name := range slices.Sorted(maps.Keys(f.Scope.Issued)) {
		from := f.Scope.Issued[name]
		why := "no action gets the credential " + name
		a, err := c.Read(ctx, as, from.RolePath())
		switch client.KindOf(err) {
		case "":
			if err == nil && f.examineEngine(r, name, from, a.Data) && examineCA(ctx, r, name, from, c, as) {
				good++
			}
		case client.Absent:
			r.Bad("vault.engines", "the "+from.String()+" is missing", why, f.makes(from))
		case client.Unmounted, client.Invalid:
			r.Bad("vault.engines", fmt.Sprintf("there is no %s engine at %s/", from.Engine, from.Mount), why, fmt.Sprintf("vault secrets enable -path=%s %s, then: %s", from.Mount, from.Engine, f.makes(from)))
		case client.Refused:
			r.Warn("vault.engines", "your token may not read "+from.RolePath(), "whether it is there is not known", "a token that may: vault read "+from.RolePath())
		default:
			r.Bad("vault.engines", err.Error(), why, client.Mend(err))
		}
	}
	if n := len(f.Scope.Issued); n > 0 && good == n {
		r.Fine("vault.engines", "%d credential(s) are issued by engines, whose roles and keys are there", n)
	}
}

// makes is how an admin makes what issues.
func (f File) makes(from *issued.From) string {
	switch from.Engine {
	case issued.PKI:
		return fmt.Sprintf("vault write %s allowed_domains=… allow_subdomains=true client_flag=true server_flag=false key_type=%s no_store=true", from.RolePath(), from.KeyType)
	case issued.SSH:
		return "setup = true in its from block, then: " + f.Setup() + "  (or by hand: vaultpolicy/README.md, section 11)"
	case issued.Transit:
		return fmt.Sprintf("vault write %s type=%s", from.RolePath(), keyFor[from.Algorithm][0])
	}
	return fmt.Sprintf("vault write %s db_name=… creation_statements=…", from.RolePath())
}

// keyFor algorithms are the types of transit's keys that sign so; none: any does.
var keyFor = map[string][]string{
	issued.Ed25519: {"ed25519"}, issued.ECDSAP256: {"ecdsa-p256"}, issued.RSAPKCS1: {"rsa-2048", "rsa-3072", "rsa-4096"},
	issued.HMACSHA256: {"aes256-gcm96"},
}

// examineEngine holds what an engine says of a role or a key against what is asked of
// it.
func (f File) examineEngine(r *finding.Report, name string, from *issued.From, data map[string]any) bool {
	look := "vault read " + from.RolePath()
	switch from.Engine {
	case issued.PKI:
		if kind := client.Text(data["key_type"]); kind != from.KeyType && kind != "any" {
			r.Bad("vault.engines", fmt.Sprintf("the %s signs keys of type %q, and the credential %s has %q", from, kind, name, from.KeyType), "no action gets the credential "+name, "key_type in its from block, or: vault write "+from.RolePath()+" key_type="+from.KeyType)
			return false
		}
		if !client.Flag(data["no_store"]) || client.Flag(data["generate_lease"]) {
			r.Warn("vault.engines", "the "+from.String()+" keeps every certificate, or a lease of it", "the server's store grows with each action", "vault write "+from.RolePath()+" no_store=true generate_lease=false  (with the role's other fields: "+look+")")
			return false
		}
	case issued.SSH:
		return examineSSH(r, name, from, data)
	case issued.Transit:
		kind := client.Text(data["type"])
		if kinds := keyFor[from.Algorithm]; from.Algorithm != issued.HMACSHA256 && !slices.Contains(kinds, kind) {
			r.Bad("vault.engines", fmt.Sprintf("the %s is of type %q, which does not sign with %s", from, kind, from.Algorithm), "every call with the credential "+name+" is refused", "algorithm in its from block, or another key: vault write "+from.Mount+"/keys/NAME type="+kinds[0])
			return false
		}
		if client.Flag(data["exportable"]) || client.Flag(data["allow_plaintext_backup"]) {
			r.Warn("vault.engines", "the "+from.String()+" can be exported", "whoever may export it signs elsewhere", "a key that cannot: vault write "+from.Mount+"/keys/NAME type="+kind)
			return false
		}
	}
	return true
}

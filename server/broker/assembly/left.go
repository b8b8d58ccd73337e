package assembly

import (
	"context"
	"fmt"

	"bivouac/edge/finding"
	"bivouac/server/broker/keyring"
	"bivouac/vaultpolicy"
)

// onVault is the server that holds grants and credentials, beside a keyring that may
// hold some still: those are known to no broker until they are moved.
type onVault struct {
	*vaultpolicy.Vault
	keys *keyring.Keyring
}

// Examine says also what was left behind.
func (v onVault) Examine(ctx context.Context, r *finding.Report) {
	v.Vault.Examine(ctx, r)
	sayLeft(r, leftIn(v.keys), "stop the broker, then ")
}

// sayLeft of a keyring beside a vault block. first: what comes before it is moved.
func sayLeft(r *finding.Report, what, first string) {
	if what != "" {
		r.Warn("vault.keyring", what, "whoever uses one is told that it is not known to this broker",
			first+"bivouac-broker vault-move --apply; or grant and set them anew (bivouac grant create, bivouac credential set)")
	}
}

// leftIn says what of grants in force and of credentials is in the keyring; empty:
// nothing.
func leftIn(keys *keyring.Keyring) string {
	grants, credentials := keys.Left()
	if grants+credentials == 0 {
		return ""
	}
	return fmt.Sprintf("%d grant(s) in force and %d credential(s) are in the keyring still, where the vault block leaves them unused", grants, credentials)
}

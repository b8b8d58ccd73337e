package oauth

import (
	"fmt"
	"slices"
	"strings"

	"bivouac/edge/finding"
)

// Examine says which tokens could not be got, and which refresh tokens are not stored.
// It asks nobody.
func (t *Tokens) Examine(r *finding.Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var keys []key
	for k := range t.held {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int { return strings.Compare(a.name+"/"+a.tenant.String(), b.name+"/"+b.tenant.String()) })
	for _, k := range keys {
		h, check := t.held[k], "oauth2."+k.name
		switch {
		case !h.saved && !h.stored.IsZero():
			r.Bad(check, fmt.Sprintf("the refresh token of tenant %s was replaced by its server, and is not stored yet", k.tenant),
				"it is lost if the broker ends before it is stored, and a person must authorise anew", "mend what holds the credentials (keyring's disk, or Vault): the broker writes it again by itself; do not stop it before")
		case h.refusal != nil:
			r.Bad(check, fmt.Sprintf("tenant %s: %v", k.tenant, h.refusal), "tools and routes with this credential fail", "bivouac credential set "+k.name)
		case h.overtaken:
			r.Warn(check, fmt.Sprintf("the credential of tenant %s was stored anew or deleted while its server replaced the refresh token: what is stored counts, and the new token was let go", k.tenant),
				"tools and routes with this credential fail, where it was deleted", "bivouac credential set "+k.name+"  (where it shall be used again)")
		case !h.token.IsZero():
			r.Fine(check, "tenant %s has a token", k.tenant)
		}
	}
}

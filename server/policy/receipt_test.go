package policy

import (
	"encoding/base64"
	"testing"
	"time"
)

// Only a receipt that can be read and shows every layer gone leaves nothing; a grant in
// force, or one that a later receipt proves, has nothing pending.
func TestPending(t *testing.T) {
	jws := func(body string) string { return "e30." + base64.RawURLEncoding.EncodeToString([]byte(body)) + ".c2ln" }
	whole := jws(`{"layers":[{"name":"server","gone":true,"detail":"x"},{"name":"authority","gone":true,"detail":"y"}]}`)
	part := jws(`{"layers":[{"name":"server","gone":true},{"name":"authority","gone":false,"detail":"sealed"},{"name":"turns","gone":false,"detail":"2 left"}]}`)
	then := time.Now()
	for name, c := range map[string]struct {
		grant Grant
		want  string
	}{
		"in force":     {Grant{}, ""},
		"not signed":   {Grant{RevokedAt: then}, "the broker has signed no receipt of it yet"},
		"whole":        {Grant{RevokedAt: then, Receipt: whole}, ""},
		"in part":      {Grant{RevokedAt: then, Receipt: part}, "authority: sealed; turns: 2 left"},
		"proven later": {Grant{RevokedAt: then, Receipt: part, Proof: whole}, ""},
		"no layers":    {Grant{RevokedAt: then, Receipt: jws(`{}`)}, "its receipt cannot be read"},
		"no JSON":      {Grant{RevokedAt: then, Receipt: jws(`layers`)}, "its receipt cannot be read"},
		"no base64":    {Grant{RevokedAt: then, Receipt: "a.!.b"}, "its receipt cannot be read"},
		"no signature": {Grant{RevokedAt: then, Receipt: "receipt"}, "its receipt cannot be read"},
	} {
		if got := c.grant.Pending(); got != c.want {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"bivouac/server/api/apiv1"
)

// An end of which something is left is told from one that is seen in every layer, and one
// that a later receipt shows says how to have that.
func TestPendingEndIsShown(t *testing.T) {
	then := timestamppb.New(time.Now().Add(-time.Hour))
	shown := func(g *apiv1.Grant) string {
		g.Id, g.State, g.RevokedAt = "grt_1", "REVOKED", then
		var b bytes.Buffer
		showGrant(&b, &apiv1.GetGrantResponse{Grant: g})
		return grantState(g) + "\n" + b.String()
	}
	for name, c := range map[string]struct {
		grant     *apiv1.Grant
		want, not []string
	}{
		"seen at once": {&apiv1.Grant{}, []string{"REVOKED\n", "explain grt_1"}, []string{"pending", "--proof"}},
		"not yet":      {&apiv1.Grant{Pending: "authority: Vault\x1b[2J is sealed"}, []string{"REVOKED, pending\n", "pending: it is refused", "authority: Vault", "bivouac revoke grt_1"}, []string{"--proof", "\x1b"}},
		"later":        {&apiv1.Grant{ProvenAt: then}, []string{"REVOKED\n", "seen gone in every layer 1h0m0s ago", "bivouac grant show grt_1 --proof FILE"}, []string{"pending"}},
	} {
		got := shown(c.grant)
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q is missing in\n%s", name, w, got)
			}
		}
		for _, n := range c.not {
			if strings.Contains(got, n) {
				t.Errorf("%s: %q is in\n%s", name, n, got)
			}
		}
	}
}

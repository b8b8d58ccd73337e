package finding_test

import (
	"strings"
	"testing"

	"bivouac/edge/finding"
)

// A port that refuses is one where nothing listens, or, beyond this machine, one that a
// firewall rejects: both are named, with the address.
func TestRefused(t *testing.T) {
	for address, elsewhere := range map[string]bool{"203.0.113.9:7401": true, "127.0.0.1:7401": false, "[2001:db8::1]:7401": true} {
		what, mend := finding.Refused(address), finding.MendRefused(address, "bivouac-server")
		if !strings.Contains(what, address) || !strings.Contains(what, "TCP port 7401") || strings.Contains(what, "firewall") != elsewhere {
			t.Errorf("%s: %s", address, what)
		}
		if !strings.Contains(mend, "bivouac-server") || strings.Contains(mend, "ss -lnt 'sport = :7401'") != elsewhere || strings.Contains(mend, "open TCP port 7401") != elsewhere {
			t.Errorf("%s: %s", address, mend)
		}
	}
}

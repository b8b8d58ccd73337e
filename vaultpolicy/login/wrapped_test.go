package login

import (
	"strings"
	"testing"
)

// Only the very endpoint of the role makes a secret id that is opened: what ends like
// it may be anybody's.
func TestMade(t *testing.T) {
	root := Auth{Mount: "approle", Role: "broker"}
	team := Auth{Namespace: "a/b/", Mount: "approle", Role: "broker"}
	for _, c := range []struct {
		auth Auth
		path string
		want bool
	}{
		{root, "auth/approle/role/broker/secret-id", true},
		{root, "cubbyhole/auth/approle/role/broker/secret-id", false},
		{root, "a/b/auth/approle/role/broker/secret-id", false},
		{root, "/auth/approle/role/broker/secret-id", false},
		{root, "", false},
		{team, "auth/approle/role/broker/secret-id", true},
		{team, "a/b/auth/approle/role/broker/secret-id", true},
		{team, "b/auth/approle/role/broker/secret-id", false},
		{team, "a/b/cubbyhole/auth/approle/role/broker/secret-id", false},
		{team, "auth/approle/role/other/secret-id", false},
	} {
		if got := c.auth.made(c.path); got != c.want {
			t.Errorf("in %q, %q: %t", c.auth.Namespace, c.path, got)
		}
	}
}

// The list of secret ids has no dates: which one was intercepted is found by when it was
// made, and the alarm says how.
func TestAlarmSaysWhichSecretID(t *testing.T) {
	mend := Auth{Mount: "approle", Role: "bivouac-broker", Wrapped: "wrapped"}.intercepted("was opened").Mend
	for _, part := range []string{"vault list auth/approle/role/bivouac-broker/secret-id,", "auth/approle/role/bivouac-broker/secret-id-accessor/lookup secret_id_accessor=", "creation_time", "/secret-id-accessor/destroy "} {
		if !strings.Contains(mend, part) {
			t.Errorf("it does not say %q: %s", part, mend)
		}
	}
}

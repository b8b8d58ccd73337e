//go:build linux

package vaultpolicy

import (
	"os"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authoritytest"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// A broker that loses its login while its secret id is wrong is not locked out by its own
// tries: the right one logs in as soon as it is there.
func TestWrongSecretIDLocksNothing(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		v := x.run(t, nil)
		g, _ := x.grant(t, v)
		file := x.cfg.path(x.cfg.Auth.SecretIDFile)
		right, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		put := func(text string) {
			t.Helper()
			if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(file+".new", file); err != nil {
				t.Fatal(err)
			}
		}
		put("00000000-0000-0000-0000-000000000000")
		if err := x.root.Sys().RevokePrefixWithContext(t.Context(), "auth/"+x.cfg.Auth.Mount+"/login"); err != nil {
			t.Fatal(err)
		}
		// Longer than six tries, one each second.
		for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			_, err := v.Credentials(t.Context(), g.Tenant)
			if protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "unlock") {
				t.Fatalf("with a wrong one: %v", err)
			}
		}
		put(string(right))
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			_, err := v.Credentials(t.Context(), g.Tenant)
			if err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("the right one: %v", err)
			}
		}
		if err := v.PutCredential(t.Context(), g.Tenant, "weather", authoritytest.Seal(t, v, "weather", authoritytest.Value)); err != nil {
			t.Error(err)
		}
	})
}

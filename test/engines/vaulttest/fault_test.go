//go:build linux

package vaulttest_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// patience is how long a request may hang until a test believes it.
const patience = 500 * time.Millisecond

// asks sends one request that is audited, and waits as long as patience.
func asks(t *testing.T, s *vaulttest.Server, address string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := s.ClientAt(t, address, s.RootToken()).Auth().Token().LookupSelfWithContext(ctx)
	return err
}

// answers asks until there is an answer: a busy machine may need more than patience.
func answers(t *testing.T, s *vaulttest.Server, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := s.ClientAt(t, address, s.RootToken()).Auth().Token().LookupSelfWithContext(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestAuditFileIsRotated(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Start(t, p)
		mount, _ := mounted(t, s, s.Root(t))
		old := s.RotateAudit(t)
		reads(t, s.Root(t), mount)
		for name, wants := range map[string]string{old: "sys/mounts/" + mount, s.AuditFile(): mount + "/data/weather"} {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(b), wants) {
				t.Errorf("%s has no line about %s", name, wants)
			}
			if strings.Contains(string(b), canary) || strings.Contains(string(b), s.RootToken()) {
				t.Errorf("%s shows a secret", name)
			}
		}
	})
}

// Without its audit a server refuses; with a device that hangs it hangs. Both are
// mended, and what is asked then is served.
func TestAuditFails(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Start(t, p)
		answers(t, s, s.Address())
		mend := s.FailAudit(t)
		_, err := s.Root(t).Auth().Token().LookupSelf()
		refused(t, "a request that cannot be recorded", err, http.StatusInternalServerError)
		mend()
		answers(t, s, s.Address())

		mend = s.BlockAudit(t)
		if err := asks(t, s, s.Address()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request behind a blocked device: %v", err)
		}
		mend()
		answers(t, s, s.Address())
	})
}

func TestProxy(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Open(t, p)
		way := s.Proxy(t)
		answers(t, s, way.Address())

		way.Hold()
		if err := asks(t, s, way.Address()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request that is held: %v", err)
		}
		way.Pass()
		answers(t, s, way.Address())

		way.Refuse()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := s.ClientAt(t, way.Address(), s.RootToken()).Auth().Token().LookupSelfWithContext(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("a request that is refused: %v", err)
		}
		answers(t, s, s.Address()) // the server itself is well

		const late = 50 * time.Millisecond
		way.Slow(late)
		began := time.Now()
		answers(t, s, way.Address())
		if took := time.Since(began); took < 2*late {
			t.Errorf("a slow way and back took %s", took)
		}
	})
}

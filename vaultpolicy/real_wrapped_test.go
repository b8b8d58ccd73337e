//go:build linux

package vaultpolicy

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/vault/api"

	"bivouac/edge/finding"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// wrap what the admin asks of a path, and put it where the broker looks.
func (x *site) wrap(t *testing.T, path string, body map[string]any) (token string) {
	t.Helper()
	c, err := x.root.Clone()
	if err != nil {
		t.Fatal(err)
	}
	c.SetToken(x.RootToken())
	if x.cfg.Namespace != "" {
		c.SetNamespace(x.cfg.Namespace)
	}
	c.SetWrappingLookupFunc(func(string, string) string { return "60s" })
	s, err := c.Logical().WriteWithContext(t.Context(), path, body)
	if err != nil {
		t.Fatal(err)
	}
	x.putWrapped(t, s.WrapInfo.Token)
	return s.WrapInfo.Token
}

func (x *site) putWrapped(t *testing.T, text string) {
	t.Helper()
	file := x.cfg.path(x.cfg.Auth.SecretIDWrapped)
	if err := errors.Join(os.WriteFile(file+".new", []byte(text+"\n"), 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}

// A wrapped secret id is opened once, before the first login and while the broker
// runs; the login stands on it from then on.
func TestWrappedSecretID(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		x.cfg.Auth.SecretIDWrapped = "wrapped"
		if p := x.cfg.problems(false); len(p) > 0 {
			t.Fatal(p)
		}
		path := "auth/" + x.cfg.Auth.Mount + "/role/" + x.cfg.Auth.Role + "/secret-id"
		kept, wrapped := x.cfg.path(x.cfg.Auth.SecretIDFile), x.cfg.path("wrapped")
		if err := os.Remove(kept); err != nil {
			t.Fatal(err)
		}
		token := x.wrap(t, path, nil)
		look := finding.From("broker")
		if (File{Config: x.cfg}).ExamineLogin(t.Context(), look); len(look.All) != 1 || !strings.Contains(look.All[0].What, "waits in "+wrapped) {
			t.Errorf("a doctor says %+v", look.All)
		}
		v := x.run(t, nil)
		waits(t, "the first login", func() error { return v.session.Prove(t.Context()) })
		first := x.keptID(t, kept)
		if _, err := os.Stat(wrapped); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the wrapped file is still there: %v", err)
		}
		if _, err := x.root.Logical().UnwrapWithContext(t.Context(), token); err == nil {
			t.Error("the token opens a second time")
		}
		x.wrap(t, path, nil)
		waits(t, "a new one while the broker runs", func() error {
			if x.keptID(t, kept) == first {
				return errStill
			}
			return nil
		})
		again := x.vault(t, nil)
		if err := again.session.Prove(t.Context()); err != nil || again.session.Alarm() != nil {
			t.Errorf("the new one does not log in: %v", err)
		}
	})
}

func (x *site) keptID(t *testing.T, file string) string {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil || info.Mode().Perm() != 0o600 || len(strings.TrimSpace(string(b))) < 16 {
		t.Errorf("the kept secret id: %v, mode %v", err, info.Mode())
	}
	return string(b)
}

// One that somebody opened before, made elsewhere or put there is an alarm: it is not
// opened, it is found, nothing of it is shown, and the login that is there goes on.
func TestWrappedSecretIDIsIntercepted(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		x.cfg.Auth.SecretIDWrapped = "wrapped"
		path := "auth/" + x.cfg.Auth.Mount + "/role/" + x.cfg.Auth.Role + "/secret-id"
		kept := x.cfg.path(x.cfg.Auth.SecretIDFile)
		before := x.keptID(t, kept)
		for name, c := range map[string]struct {
			put  func() string
			want string
		}{
			"opened before": {func() string {
				token := x.wrap(t, path, nil)
				if _, err := x.root.Logical().UnwrapWithContext(t.Context(), token); err != nil {
					t.Fatal(err)
				}
				return ""
			}, "somebody else was faster"},
			"of another endpoint": {func() string {
				return x.wrap(t, "sys/wrapping/wrap", map[string]any{"secret_id": "a-secret-id-of-somebody-else"})
			}, "was made by sys/wrapping/wrap"},
			"of another role": {func() string {
				x.write(t, "auth/"+x.cfg.Auth.Mount+"/role/other", map[string]any{"bind_secret_id": true})
				return x.wrap(t, "auth/"+x.cfg.Auth.Mount+"/role/other/secret-id", nil)
			}, "/role/other/secret-id"},
			"wrapped again by who opened it": {func() string { return x.wrapAgain(t, path) }, "was made by cubbyhole/auth/"},
			"of nobody":                      {func() string { x.putWrapped(t, "hvs.of-nobody-0123456789"); return "" }, "cannot be opened"},
			"no token":                       {func() string { x.putWrapped(t, "x"); return "" }, "is no token that unwraps"},
		} {
			token := c.put()
			var said lines
			v, err := New(Params{Config: x.cfg, Trust: x.keys, Log: slog.New(slog.NewTextHandler(&said, nil))})
			if err != nil {
				t.Fatal(err)
			}
			if err := v.session.Prove(t.Context()); err != nil {
				t.Errorf("%s: the login that is there fails too: %v", name, err)
			}
			if bad := v.session.Alarm(); bad == nil || !strings.Contains(bad.Error(), c.want) {
				t.Errorf("%s: the alarm is %v", name, bad)
			}
			running, looking := finding.From("broker"), finding.From("broker")
			v.Examine(t.Context(), running)
			(File{Config: x.cfg}).ExamineLogin(t.Context(), looking)
			for who, r := range map[string]*finding.Report{"the broker": running, "a doctor": looking} {
				mended := slices.ContainsFunc(r.All, func(f finding.Finding) bool { return strings.Contains(f.Mend, "vault list "+path+",") })
				if found := strings.Join(worst(r), "\n"); !mended || !strings.Contains(found, "vault.wrapped: the wrapped secret id in ") || !strings.Contains(found, c.want) {
					t.Errorf("%s: %s finds %s", name, who, found)
				}
			}
			if text := said.String(); !strings.Contains(text, "ALARM") || token != "" && strings.Contains(text, token) || strings.Contains(text, "somebody-else") {
				t.Errorf("%s: the log says %s", name, text)
			}
			if x.keptID(t, kept) != before {
				t.Errorf("%s: the secret id was replaced", name)
			}
			if token != "" {
				if _, err := x.root.Logical().UnwrapWithContext(t.Context(), token); err != nil {
					t.Errorf("%s: it was opened all the same: %v", name, err)
				}
			}
			v.logout(t)
		}
		// A good one in its place ends the alarm.
		v := x.vault(t, nil)
		if err := v.session.Prove(t.Context()); err != nil || v.session.Alarm() == nil {
			t.Fatal(err)
		}
		x.wrap(t, path, nil)
		x.runs(t, v)
		waits(t, "the end of the alarm", func() error {
			if v.session.Alarm() != nil {
				return errStill
			}
			return nil
		})
		if x.keptID(t, kept) == before {
			t.Error("the good one was not kept")
		}
	})
}

// wrapAgain opens what the admin wrapped, keeps it where whoever has the server's default
// policy may write, and puts a wrapped reading of that in its place.
func (x *site) wrapAgain(t *testing.T, path string) string {
	t.Helper()
	taken, err := x.root.Logical().UnwrapWithContext(t.Context(), x.wrap(t, path, nil))
	if err != nil {
		t.Fatal(err)
	}
	thief, err := x.root.Clone()
	if err != nil {
		t.Fatal(err)
	}
	own, err := x.root.Auth().Token().CreateWithContext(t.Context(), &api.TokenCreateRequest{Policies: []string{"default"}})
	if err != nil {
		t.Fatal(err)
	}
	thief.SetToken(own.Auth.ClientToken)
	if _, err := thief.Logical().WriteWithContext(t.Context(), "cubbyhole/"+path, map[string]any{"secret_id": taken.Data["secret_id"]}); err != nil {
		t.Fatal(err)
	}
	thief.SetWrappingLookupFunc(func(string, string) string { return "60s" })
	again, err := thief.Logical().ReadWithContext(t.Context(), "cubbyhole/"+path)
	if err != nil {
		t.Fatal(err)
	}
	x.putWrapped(t, again.WrapInfo.Token)
	return again.WrapInfo.Token
}

// In a namespace, too, the broker opens what was made there for it.
func TestWrappedSecretIDInANamespace(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Open(t, p)
		name, ok := s.Namespace(t)
		if !ok {
			t.Skipf("%s has no namespaces", p.Name)
		}
		x := newSiteIn(t, s, name)
		x.cfg.Auth.SecretIDWrapped = "wrapped"
		kept := x.cfg.path(x.cfg.Auth.SecretIDFile)
		before := x.keptID(t, kept)
		x.wrap(t, "auth/"+x.cfg.Auth.Mount+"/role/"+x.cfg.Auth.Role+"/secret-id", nil)
		v := x.vault(t, nil)
		if err := v.session.Prove(t.Context()); err != nil || v.session.Alarm() != nil || x.keptID(t, kept) == before {
			t.Errorf("it is not opened: %v, alarm %v", err, v.session.Alarm())
		}
		v.logout(t)
	})
}

// logout lets go of an adapter that does not run.
func (v *Vault) logout(t *testing.T) {
	t.Helper()
	File{Config: v.cfg}.logout(context.WithoutCancel(t.Context()), v.session, v.client)
	v.client.Close()
}

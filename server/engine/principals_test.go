package engine_test

import (
	"crypto/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// INV-9: who may add principals, and to which tenant.
func TestAddPrincipal(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		_, bob := w.Principal("local", "bob", false)
		_, eve := w.Principal("other", "eve", true)
		operator, err := engine.AddOperator(ctx(), w.Store, engine.NewPrincipal{Tenant: "local", Name: "root", TokenHash: []byte("root")})
		if err != nil || !operator.Admin || !operator.Operator || operator.Tenant != w.Tenant.ID {
			t.Fatalf("%+v, %v", operator, err)
		}
		_, err = engine.AddOperator(ctx(), w.Store, engine.NewPrincipal{Name: "root", TokenHash: []byte("nowhere")})
		wantCode(t, "an operator of no tenant", err, protocol.CodeInvalidArgument)
		for _, c := range []struct {
			name string
			by   policy.Principal
			to   engine.NewPrincipal
			code protocol.Code
		}{
			{"a user in its own tenant", bob, engine.NewPrincipal{Name: "x"}, protocol.CodePermissionDenied},
			{"an admin in its own tenant", w.Person, engine.NewPrincipal{Name: "one"}, ""},
			{"an admin that names its own tenant", w.Person, engine.NewPrincipal{Name: "two", Tenant: "local", Kind: "service"}, ""},
			{"an admin in another tenant", eve, engine.NewPrincipal{Name: "x", Tenant: "local"}, protocol.CodePermissionDenied},
			{"the operator in another tenant", operator, engine.NewPrincipal{Name: "three", Tenant: "other"}, ""},
			{"the operator in a new tenant", operator, engine.NewPrincipal{Name: "four", Tenant: "new"}, ""},
			{"a tenant with no name", operator, engine.NewPrincipal{Name: "x", Tenant: "New Tenant"}, protocol.CodeInvalidArgument},
			{"a name that is taken", w.Person, engine.NewPrincipal{Name: "bob"}, protocol.CodeAlreadyExists},
			{"a name that is none", w.Person, engine.NewPrincipal{Name: "Bob Smith"}, protocol.CodeInvalidArgument},
			{"a name with every sign", w.Person, engine.NewPrincipal{Name: "a.b_c@d-e", Kind: "service"}, ""},
			{"a name of 63", w.Person, engine.NewPrincipal{Name: strings.Repeat("x", 63)}, ""},
			{"a name of 64", w.Person, engine.NewPrincipal{Name: strings.Repeat("x", 64)}, protocol.CodeInvalidArgument},
			{"a name that begins with a sign", w.Person, engine.NewPrincipal{Name: "-x"}, protocol.CodeInvalidArgument},
			{"a tenant with an underscore", operator, engine.NewPrincipal{Name: "x", Tenant: "local_"}, protocol.CodeInvalidArgument},
			{"a kind that is none", w.Person, engine.NewPrincipal{Name: "x", Kind: "robot"}, protocol.CodeInvalidArgument},
		} {
			c.to.TokenHash = []byte(c.name)
			p, tenant, err := w.Engine.AddPrincipal(ctx(), et.Caller(c.by), c.to)
			wantCode(t, c.name, err, c.code)
			if err != nil {
				continue
			}
			if p.Operator || p.Admin || p.Name != c.to.Name || p.Tenant != tenant.ID || p.CreatedAt.IsZero() {
				t.Errorf("%s: %+v of %+v", c.name, p, tenant)
			}
			if got := holder(t, w, c.to.TokenHash); got.ID != p.ID {
				t.Errorf("%s: the token finds %+v", c.name, got)
			}
		}
	})
}

func holder(t *testing.T, w *et.World, hash []byte) (p policy.Principal) {
	t.Helper()
	if err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) (err error) {
		p, _, err = tx.PrincipalByToken(hash)
		return err
	}); err != nil {
		t.Error(err)
	}
	return p
}

func TestDisablePrincipalIsAnAdmins(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		_, bob := w.Principal("local", "bob", false)
		_, err := w.Engine.DisablePrincipal(ctx(), et.Caller(bob), bob.ID)
		wantCode(t, "a user disables", err, protocol.CodePermissionDenied)
		p, err := w.Engine.DisablePrincipal(ctx(), w.Me(), bob.ID)
		wantCode(t, "an admin disables", err, "")
		if p.DisabledAt.IsZero() {
			t.Errorf("%+v", p)
		}
	})
}

// INV-9: a machine is bound by its owner and by an admin, to who they can see.
func TestBindings(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		_, bob := w.Principal("local", "bob", false)
		_, carol := w.Principal("local", "carol", false)
		_, eve := w.Principal("other", "eve", true)
		r := w.JoinOf(bob, "desk", "files.read")
		read := []string{"files.read"}
		for _, c := range []struct {
			name string
			by   policy.Principal
			to   engine.NewBinding
			code protocol.Code
		}{
			{"another user", carol, engine.NewBinding{Principal: "carol", Actions: read}, protocol.CodeNotFound},
			{"an admin", w.Person, engine.NewBinding{Principal: "carol", Actions: read}, ""},
			{"who is bound to it", carol, engine.NewBinding{Principal: "carol", Actions: []string{"turn"}}, protocol.CodePermissionDenied},
			{"its owner", bob, engine.NewBinding{Principal: bob.ID.String(), Actions: read}, ""},
			{"its owner, whom it cannot see", bob, engine.NewBinding{Principal: eve.ID.String(), Actions: read}, protocol.CodeNotFound},
			{"an admin of another tenant", eve, engine.NewBinding{Principal: "eve", Actions: read}, protocol.CodeNotFound},
			{"no action", w.Person, engine.NewBinding{Principal: "carol"}, protocol.CodeInvalidArgument},
			{"an action that is none", w.Person, engine.NewBinding{Principal: "carol", Actions: []string{"shell"}}, protocol.CodeInvalidArgument},
		} {
			c.to.Runner = r.ID
			b, p, err := w.Engine.PutBinding(ctx(), et.Caller(c.by), c.to)
			wantCode(t, c.name, err, c.code)
			if err == nil && (b.Runner != r.ID || b.Principal != p.ID || !slices.Equal(b.Actions, read)) {
				t.Errorf("%s: %+v of %+v", c.name, b, p)
			}
		}
		b, _, err := w.Engine.PutBinding(ctx(), w.Me(), engine.NewBinding{Runner: r.ID, Principal: "carol", Actions: read})
		wantCode(t, "the same again", err, "")
		wantCode(t, "another tenant's admin ends it", w.Engine.DeleteBinding(ctx(), et.Caller(eve), b.ID), protocol.CodeNotFound)
		wantCode(t, "its principal gives it up", w.Engine.DeleteBinding(ctx(), et.Caller(carol), b.ID), "")
	})
}

func TestJoinCodes(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		_, bob := w.Principal("local", "bob", false)
		for _, c := range []struct {
			name  string
			code  engine.NewJoinCode
			lasts time.Duration
			want  protocol.Code
		}{
			{"by default", engine.NewJoinCode{}, 10 * time.Minute, ""},
			{"a minute", engine.NewJoinCode{Name: "desk", Actions: []string{"files.read", "turn"}, TTL: time.Minute}, time.Minute, ""},
			{"a day", engine.NewJoinCode{TTL: 24 * time.Hour}, 0, protocol.CodeInvalidArgument},
			{"before now", engine.NewJoinCode{TTL: -time.Second}, 0, protocol.CodeInvalidArgument},
			{"an action that is none", engine.NewJoinCode{Actions: []string{"shell"}}, 0, protocol.CodeInvalidArgument},
			{"a name that is none", engine.NewJoinCode{Name: "My Desk"}, 0, protocol.CodeInvalidArgument},
		} {
			c.code.Hash = []byte(c.name)
			kept, err := w.Engine.CreateJoinCode(ctx(), et.Caller(bob), c.code)
			wantCode(t, c.name, err, c.want)
			if err == nil && (kept.Principal != bob.ID || !kept.ExpiresAt.Equal(time.Now().Add(c.lasts))) {
				t.Errorf("%s: %+v", c.name, kept)
			}
		}
		_, err := w.Engine.CreateJoinCode(ctx(), et.Caller(bob), engine.NewJoinCode{Hash: []byte("a minute")})
		wantCode(t, "the same code again", err, protocol.CodeAlreadyExists)
	})
}

// A machine's name is free, or the invitation and the enrolment say whose it is; a
// machine that was taken out gives its name back. Another person's does not count.
func TestMachineNamesAreUnique(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		_, bob := w.Principal("local", "bob", false)
		_, eve := w.Principal("local", "eve", false)
		invite := func(by store.Caller, hash, name string) error {
			_, err := w.Engine.CreateJoinCode(ctx(), by, engine.NewJoinCode{Hash: []byte(hash), Name: name})
			return err
		}
		enroll := func(hash, key, name string) (execution.Runner, error) {
			n := engine.Enrolment{CodeHash: []byte(hash), Runner: protocol.NewID[protocol.RunnerKind](time.Now(), rand.Reader), Name: name, PublicKey: []byte(key), Thumbprint: key}
			_, err := w.Engine.InvitationOf(ctx(), n)
			r, again := w.Engine.EnrollRunner(ctx(), n)
			if protocol.CodeOf(err) != protocol.CodeOf(again) {
				t.Errorf("asked before: %v; enrolled: %v", err, again)
			}
			return r, again
		}
		for _, code := range []string{"one", "two", "three"} {
			wantCode(t, "an invitation", invite(et.Caller(bob), code, "desk"), "")
		}
		first, err := enroll("one", "key 1", "")
		wantCode(t, "the first desk", err, "")
		wantCode(t, "an invitation of a name that is taken", invite(et.Caller(bob), "four", "desk"), protocol.CodeAlreadyExists)
		wantCode(t, "another person's", invite(et.Caller(eve), "four", "desk"), "")
		_, err = enroll("two", "key 2", "")
		if wantCode(t, "the second desk", err, protocol.CodeAlreadyExists); err != nil && !strings.Contains(err.Error(), "bivouac edge revoke "+first.ID.String()) {
			t.Errorf("it says %v", err)
		}
		_, err = enroll("two", "key 2", "desk2")
		wantCode(t, "by another name, with the same code", err, "")
		if _, err := w.Engine.RevokeRunner(ctx(), et.Caller(bob), first.ID, "gone"); err != nil {
			t.Fatal(err)
		}
		_, err = enroll("three", "key 3", "")
		wantCode(t, "a name that is free again", err, "")
	})
}

// INV-9: an artifact is its sender's, whoever else sent the same bytes.
func TestArtifactStored(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		_, bob := w.Principal("local", "bob", false)
		digest := "sha256:" + digestOf("workspace")
		for _, want := range []bool{false, true} {
			if existed, err := w.Engine.ArtifactStored(ctx(), w.Me(), digest, 9); err != nil || existed != want {
				t.Fatalf("existed %v, want %v: %v", existed, want, err)
			}
		}
		read := func(c store.Caller) error {
			return w.Store.View(ctx(), c, func(tx *store.Tx) error {
				_, err := tx.Artifact(digest)
				return err
			})
		}
		wantCode(t, "its sender", read(w.Me()), "")
		wantCode(t, "another", read(et.Caller(bob)), protocol.CodeNotFound)
		if existed, err := w.Engine.ArtifactStored(ctx(), et.Caller(bob), digest, 9); err != nil || existed {
			t.Fatalf("existed %v: %v", existed, err)
		}
		wantCode(t, "another that sent it", read(et.Caller(bob)), "")
	})
}

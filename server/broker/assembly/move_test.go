//go:build linux

package assembly

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/vault/api"

	"bivouac/edge/finding"
	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/broker"
	port "bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/keyring"
	"bivouac/server/broker/secret"
	"bivouac/server/ledger"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
	"bivouac/vaultpolicy"
)

func TestMain(m *testing.M) { os.Exit(vaulttest.Main(m)) }

// estate is a keyring with grants, and a server that its admin has set up for them.
type estate struct {
	t      *testing.T
	root   *api.Client
	dir    string
	server *vaulttest.Server
	names  string // prefix
	alive  []port.Grant
	sealed [][]byte
	over   port.Grant
}

func newEstate(t *testing.T, s *vaulttest.Server) *estate {
	t.Helper()
	x := &estate{t: t, root: s.Root(t), server: s, names: s.Prefix() + "mv", dir: filepath.Join(t.TempDir(), "broker")}
	if _, err := Init(x.dir, "", nil); err != nil {
		t.Fatal(err)
	}
	k := x.keys()
	defer k.Close()
	x.over = authoritytest.NewGrant("weather")
	for range 3 {
		g := authoritytest.NewGrant("weather")
		g.Tenant = x.over.Tenant
		if len(x.alive) == 0 {
			x.must(k.PutCredential(t.Context(), g.Tenant, "weather", authoritytest.Seal(t, k, "weather", authoritytest.Value)))
		}
		sealed, err := k.CreateGrant(t.Context(), g)
		x.must(err)
		x.alive, x.sealed = append(x.alive, g), append(x.sealed, sealed)
	}
	// One was renewed before: its first part stays refused.
	next, err := k.RotateGrant(t.Context(), x.alive[0].ID, "cln_rotation")
	x.must(err)
	x.must(k.SettleRotation(t.Context(), x.alive[0].ID, "cln_rotation"))
	x.sealed = append([][]byte{next}, append(x.sealed[1:], x.sealed[0])...)
	_, err = k.CreateGrant(t.Context(), x.over)
	x.must(err)
	_, err = k.RevokeGrant(t.Context(), x.over.ID)
	x.must(err)
	x.configure(s.Address())
	x.setup()
	return x
}

// left is what a broker that starts on the keyring finds in it; empty: nothing.
func (x *estate) left(k *keyring.Keyring) string {
	x.t.Helper()
	cfg, err := broker.LoadConfig(filepath.Join(x.dir, ConfigFile))
	x.must(err)
	held, err := authority(cfg, k, slog.New(slog.DiscardHandler))
	x.must(err)
	r := finding.From("broker")
	held.(interface {
		Examine(context.Context, *finding.Report)
	}).Examine(x.t.Context(), r)
	for _, f := range r.All {
		if f.Check == "vault.keyring" && strings.Contains(f.Mend, "vault-move --apply") {
			return strings.Split(f.What, " are in the keyring")[0]
		}
	}
	return ""
}

func (x *estate) must(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

func (x *estate) keys() *keyring.Keyring {
	x.t.Helper()
	k, err := keyring.Open(x.dir)
	x.must(err)
	return k
}

// configure writes broker.hcl for a server at an address.
func (x *estate) configure(address string) {
	x.t.Helper()
	text := fmt.Sprintf(`destination "weather" {
  url = "https://weather.example"
  credential "weather" {
    header = "Authorization"
    format = "Bearer {value}"
  }
}
vault {
  address = %q
  ca_file = %q
  prefix  = %q
  tenants = [%q]
  auth "approle" {
    mount          = %q
    role_id        = %q
    secret_id_file = "secret-id"
  }
}
`, address, x.server.CAFile(), x.names, x.over.Tenant, x.names+"-approle", x.names+"-id")
	x.must(os.WriteFile(filepath.Join(x.dir, ConfigFile), []byte(text), 0o600))
}

func (x *estate) setup() {
	x.t.Helper()
	f, err := vaultpolicy.ReadFile(filepath.Join(x.dir, ConfigFile), func(string) string { return "" })
	x.must(err)
	p, err := f.Plan(f.Scope)
	x.must(err)
	c, err := f.Client()
	x.must(err)
	defer c.Close()
	token, err := secret.New(x.server.RootToken())
	x.must(err)
	d, err := p.Diff(x.t.Context(), c, token)
	x.must(err)
	x.must(d.Apply(x.t.Context(), c, token, nil))
	role := "auth/" + x.names + "-approle/role/" + x.names + "-broker"
	_, err = x.root.Logical().WriteWithContext(x.t.Context(), role+"/role-id", map[string]any{"role_id": x.names + "-id"})
	x.must(err)
	made, err := x.root.Logical().WriteWithContext(x.t.Context(), role+"/secret-id", nil)
	x.must(err)
	x.must(os.WriteFile(filepath.Join(x.dir, "secret-id"), []byte(made.Data["secret_id"].(string)+"\n"), 0o600))
}

// move runs one, and returns what it said.
func (x *estate) move(apply bool) (said string, left bool, err error) {
	var out bytes.Buffer
	left, err = Move{Data: x.dir, Apply: apply, Out: &out, Log: slog.New(slog.DiscardHandler)}.Run(x.t.Context())
	if strings.Contains(out.String(), authoritytest.Value) {
		x.t.Error("a move shows a value")
	}
	return out.String(), left, err
}

// held is how many grants the keyring holds.
func (x *estate) held() int {
	k := x.keys()
	defer k.Close()
	m, err := k.Moving()
	x.must(err)
	return len(m.Grants) + len(m.Credentials)
}

// listed is how many grants the server's index holds.
func (x *estate) listed() (n int) {
	for _, g := range append(x.alive, x.over) {
		if _, err := x.root.KVv2(x.names+"-grants").Get(x.t.Context(), g.Principal.String()+"/"+g.ID.String()); err == nil {
			n++
		}
	}
	return n
}

// Grants move with their ids, people and parts; what was revoked stays so. Without
// apply nothing changes; cut off at any grant, or with the server away, the same again
// goes on and the keyring holds everything until then; at last it holds nothing, and the
// receipt says so. INV-13.
func TestMoveToVault(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newEstate(t, vaulttest.Open(t, p))
		k := x.keys()
		if got := x.left(k); got != "3 grant(s) in force and 1 credential(s)" {
			t.Errorf("before it, a broker says that there are %q left", got)
		}
		if _, _, err := x.move(true); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "stop it first") {
			t.Errorf("beside a broker that runs: %v", err)
		}
		k.Close()
		said, left, err := x.move(false)
		if err != nil || !left || strings.Count(said, string(vaultpolicy.StepMove)) != 4 || x.listed() != 0 || x.held() != 5 {
			t.Fatalf("a dry run: %v %v, %d there\n%s", left, err, x.listed(), said)
		}
		// Over a credential that was deleted there nothing moves, and the keyring's stays.
		credentials, name := x.root.KVv2(x.names+"-credentials"), x.over.Tenant.String()+"/weather"
		_, err = credentials.Put(t.Context(), name, map[string]any{"value": "of-before"})
		x.must(err)
		x.must(credentials.Delete(t.Context(), name))
		for _, apply := range []bool{false, true} {
			if said, _, err := x.move(apply); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "was deleted in the server") || said != "" || x.listed() != 0 || x.held() != 5 {
				t.Errorf("over a deleted credential, apply %t: %v, %d held\n%s", apply, err, x.held(), said)
			}
		}
		x.must(credentials.DeleteMetadata(t.Context(), name))
		// Away: nothing happened.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		x.must(err)
		l.Close()
		x.configure("https://" + l.Addr().String())
		if _, _, err := x.move(true); err == nil || x.held() != 5 {
			t.Errorf("with the server away: %v", err)
		}
		x.configure(x.server.Address())
		// Away in the middle: what had moved has, and the keyring holds all of it.
		way := newWay(t, x.server.Address())
		x.configure("https://" + way.Addr().String())
		var out bytes.Buffer
		_, err = Move{Data: x.dir, Apply: true, Log: slog.New(slog.DiscardHandler), Out: writer(func(b []byte) (int, error) {
			if bytes.HasPrefix(b, []byte("grant ")) {
				way.cut()
			}
			return out.Write(b)
		})}.Run(t.Context())
		if protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "2 of 5 are moved") || x.listed() != 1 || x.held() != 5 {
			t.Errorf("away in the middle: %v, %d there, %d held\n%s", err, x.listed(), x.held(), out.String())
		}
		x.configure(x.server.Address())
		// Cut off at each grant in turn: the right to list it is what is lost.
		policy, err := x.root.Sys().GetPolicyWithContext(t.Context(), x.names+"-broker")
		x.must(err)
		for i, g := range x.alive[1:] {
			deny := policy + fmt.Sprintf("\npath \"%s-grants/data/%s/+\" {\n  capabilities = [\"deny\"]\n}\n", x.names, g.Principal)
			x.must(x.root.Sys().PutPolicyWithContext(t.Context(), x.names+"-broker", deny))
			if _, _, err := x.move(true); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "run the same command again") || x.held() != 5 || x.listed() != i+1 {
				t.Errorf("cut off at grant %d: %v, %d there, %d held", i+1, err, x.listed(), x.held())
			}
		}
		x.must(x.root.Sys().PutPolicyWithContext(t.Context(), x.names+"-broker", policy))
		said, left, err = x.move(true)
		if err != nil || left || x.held() != 0 || x.listed() != 4 || strings.Count(said, string(vaultpolicy.StepThere)) != 3 {
			t.Fatalf("%v %v, %d there, %d held\n%s", left, err, x.listed(), x.held(), said)
		}
		x.receipt()
		x.must(os.Remove(filepath.Join(x.dir, MoveReceipt)))
		if _, left, err := x.move(true); err != nil || left { // once more
			t.Errorf("again: %v %v", left, err)
		}
		x.receipt()
		k = x.keys()
		if got := x.left(k); got != "" {
			t.Errorf("after it, a broker says that there are %q left", got)
		}
		k.Close()
		x.serves()
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// way passes bytes on to a server until it is cut.
type way struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
	over  bool
	work  sync.WaitGroup
}

func newWay(t *testing.T, address string) *way {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &way{Listener: l}
	w.work.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", strings.TrimPrefix(address, "https://"))
			if err != nil || !w.keep(from, to) {
				from.Close()
				return
			}
			for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
				w.work.Go(func() { io.Copy(pair[0], pair[1]) }) // until it is cut
			}
		}
	})
	t.Cleanup(func() {
		w.cut()
		w.work.Wait()
	})
	return w
}

// keep two connections to be cut; false: it was cut before.
func (w *way) keep(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, conns...)
	return !w.over
}

func (w *way) cut() {
	w.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	for _, c := range w.conns {
		c.Close()
	}
}

// receipt is proven by the root alone.
func (x *estate) receipt() {
	x.t.Helper()
	k := x.keys()
	defer k.Close()
	jws, err := os.ReadFile(filepath.Join(x.dir, MoveReceipt))
	x.must(err)
	body, err := ledger.OpenReceipt(strings.TrimSpace(string(jws)), identity.Fingerprint(k.Root()))
	if err != nil || !strings.Contains(string(body), `"kind":"move"`) || strings.Count(string(body), "grt_") != 4 {
		x.t.Errorf("the receipt: %s %v", body, err)
	}
}

// serves: a broker of the vault block serves what the keyring sealed, refuses what it
// refused, and renews.
func (x *estate) serves() {
	t := x.t
	k := x.keys()
	defer k.Close()
	f, err := vaultpolicy.ReadFile(filepath.Join(x.dir, ConfigFile), func(string) string { return "" })
	x.must(err)
	v, err := vaultpolicy.New(vaultpolicy.Params{Config: f.Config, Trust: k, Log: slog.New(slog.DiscardHandler)})
	x.must(err)
	mint := func(g port.Grant, sealed []byte) error {
		got, err := v.Mint(t.Context(), authoritytest.Use(g, sealed, "weather"))
		if err == nil && !got.Equal(authoritytest.Value) {
			t.Error("the value did not arrive")
		}
		return err
	}
	for i, g := range x.alive {
		if err := mint(g, x.sealed[i]); err != nil {
			t.Errorf("grant %d: %v", i, err)
		}
		if err := k.Alive(t.Context(), g.ID); protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("the keyring holds grant %d still: %v", i, err)
		}
	}
	if err := mint(x.alive[0], x.sealed[3]); protocol.DetailOf(err) != protocol.DetailGrantRotated {
		t.Errorf("a part that was refused before the move: %v", err)
	}
	if err := mint(x.alive[1], x.sealed[2]); protocol.CodeOf(err) != protocol.CodePermissionDenied {
		t.Errorf("another's part: %v", err)
	}
	if _, err := v.CreateGrant(t.Context(), x.over); protocol.CodeOf(err) != protocol.CodeConflict {
		t.Errorf("what was revoked before the move: %v", err)
	}
}

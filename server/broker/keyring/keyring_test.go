package keyring_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/keyring"
	"bivouac/server/capability"
)

var (
	_ broker.Authority = (*keyring.Keyring)(nil)
	_ broker.Root      = (*keyring.Keyring)(nil)
)

func newDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "broker")
	if _, err := keyring.Init(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func open(t *testing.T, dir string) *keyring.Keyring {
	t.Helper()
	k, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

func TestAuthority(t *testing.T) {
	authoritytest.Run(t, func(t *testing.T) authoritytest.Fixture {
		dir := newDir(t)
		k := open(t, dir)
		return authoritytest.Fixture{Authority: k, RootKey: k.Root().PublicKey.(ed25519.PublicKey), Reopen: func(t *testing.T) broker.Authority {
			k.Close()
			k = open(t, dir)
			return k
		}}
	})
}

func TestInitNeverOverwrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "broker")
	fingerprint, err := keyring.Init(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keyring.Init(dir); protocol.CodeOf(err) != protocol.CodeAlreadyExists {
		t.Errorf("%v", err)
	}
	if got := identity.Fingerprint(open(t, dir).Root()); got != fingerprint {
		t.Errorf("the root is %s, init said %s", got, fingerprint)
	}
}

// A file that others may read is refused, and the command in the error mends it.
func TestFileModes(t *testing.T) {
	for _, name := range []string{"keyring.age", "keyring.key", "."} {
		dir := newDir(t)
		path := filepath.Join(dir, name)
		good, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, good.Mode().Perm()|0o044); err != nil {
			t.Fatal(err)
		}
		_, err = keyring.Open(dir)
		if protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
			t.Fatalf("%s: %v", name, err)
		}
		var mode fs.FileMode
		var named string
		_, after, _ := strings.Cut(err.Error(), "chmod ")
		if _, err := fmt.Sscanf(after, "%o %s", &mode, &named); err != nil {
			t.Fatalf("%s: the error names no command: %q", name, after)
		}
		if err := os.Chmod(named, mode); err != nil {
			t.Fatal(err)
		}
		open(t, dir).Close()
	}
}

func TestOpenRefuses(t *testing.T) {
	empty := t.TempDir()
	if err := os.Chmod(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := keyring.Open(empty); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "bivouac-broker init --data "+empty) {
		t.Errorf("empty: %v", err)
	}
	if _, err := keyring.Open(filepath.Join(empty, "none")); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("none: %v", err)
	}
	dir := newDir(t)
	k := open(t, dir)
	if _, err := keyring.Open(dir); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "another bivouac-broker") {
		t.Errorf("second: %v", err)
	}
	k.Close()
	old := time.Now().Add(-time.Hour)
	unfinished := filepath.Join(dir, ".new-1") // of a broker that died
	if err := errors.Join(os.WriteFile(unfinished, nil, 0o600), os.Chtimes(unfinished, old, old)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "keyring.age")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole[len(whole)-1] ^= 1
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := keyring.Open(dir); protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("damaged: %v", err)
	}
	whole[len(whole)-1] ^= 1
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if _, err := os.Stat(unfinished); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a dead broker left: %v", err)
	}
}

// INV-17: no file holds a credential in clear, and the keyring prints nothing.
func TestNothingInClear(t *testing.T) {
	dir := newDir(t)
	k := open(t, dir)
	g := authoritytest.NewGrant("weather")
	if err := k.PutCredential(t.Context(), g.Tenant, "weather", authoritytest.Seal(t, k, "weather", authoritytest.Value)); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%v %+v %#v", k, k, k); got != "keyring REDACTED keyring REDACTED keyring REDACTED" {
		t.Errorf("%q", got)
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(authoritytest.Value)) || bytes.Contains(b, []byte("weather")) {
			t.Errorf("%s shows the credential", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) != 0 {
		t.Errorf("temporary files are left: %v %v", left, err)
	}
}

func newKey(t *testing.T) (ed25519.PrivateKey, []byte) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	spki, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return key, spki
}

func TestServerCodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := newDir(t)
		k := open(t, dir)
		code := func() string {
			c, err := keyring.NewServerCode(dir, 10*time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			return c.Reveal()
		}
		_, mine := newKey(t)
		_, theirs := newKey(t)
		first := code()
		id, err := k.EnrolServer(t.Context(), first, mine)
		if err != nil || id != keyring.ServerID(mine).String() {
			t.Fatal(id, err)
		}
		if again, err := k.EnrolServer(t.Context(), first, mine); err != nil || again != id {
			t.Errorf("the same key again: %s %v", again, err)
		}
		old := code()
		other := open(t, newDir(t))
		foreign, err := identity.NewCode(identity.CodeServer, identity.Fingerprint(other.Root()), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		unknown, err := identity.NewCode(identity.CodeServer, identity.Fingerprint(k.Root()), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		for what, tc := range map[string]struct {
			code string
			want protocol.Code
		}{
			"used by another": {first, protocol.CodeUnauthenticated},
			"another broker":  {foreign.Reveal(), protocol.CodeInvalidArgument},
			"never made":      {unknown.Reveal(), protocol.CodeUnauthenticated},
			"mistyped":        {strings.Replace(first, "srv_", "join_", 1), protocol.CodeInvalidArgument},
		} {
			if _, err := k.EnrolServer(t.Context(), tc.code, theirs); protocol.CodeOf(err) != tc.want {
				t.Errorf("%s: %v", what, err)
			}
		}
		time.Sleep(10 * time.Minute)
		if _, err := k.EnrolServer(t.Context(), old, theirs); protocol.CodeOf(err) != protocol.CodeUnauthenticated || !strings.Contains(err.Error(), "expired") {
			t.Errorf("expired: %v", err)
		}
		if _, err := k.EnrolServer(t.Context(), code(), theirs); err != nil {
			t.Errorf("a fresh one: %v", err)
		}
		k.Close()
		k = open(t, dir) // the enrolled keys are known after a restart
		if got, err := k.EnrolledServer(t.Context(), identity.Thumbprint(mine)); err != nil || got != id {
			t.Errorf("%s %v", got, err)
		}
		_, stranger := newKey(t)
		if _, err := k.EnrolledServer(t.Context(), identity.Thumbprint(stranger)); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
			t.Errorf("a stranger: %v", err)
		}
		// Only hashes are stored.
		names, err := filepath.Glob(filepath.Join(dir, "server-codes", "*"))
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		for _, n := range names {
			b, err := os.ReadFile(n)
			if err != nil || strings.Contains(string(b)+n, strings.Split(first, "_")[1]) {
				t.Errorf("%s shows the code (%v)", n, err)
			}
		}
	})
}

func TestIssue(t *testing.T) {
	k := open(t, newDir(t))
	_, spki := newKey(t)
	tenant := protocol.NewID[protocol.TenantKind](time.Now(), rand.Reader)
	chain, notAfter, err := k.Issue(t.Context(), authority.Leaf{Role: identity.RoleRunner, ID: "run_x", Tenant: tenant, SPKI: spki})
	if err != nil {
		t.Fatal(err)
	}
	certs, err := identity.ParsePEM(chain)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := identity.VerifyChain(certs, k.Root(), time.Now()); err != nil {
		t.Error(err)
	}
	if _, err := identity.VerifyChain(certs, k.Root(), time.Now().Add(keyring.LeafTTL+time.Minute)); err == nil {
		t.Error("it is valid for longer than a day")
	}
	if _, err := identity.VerifyChain(certs, open(t, newDir(t)).Root(), time.Now()); err == nil {
		t.Error("it verifies under another root")
	}
	peer, err := identity.FromLeaf(certs[0])
	if err != nil || peer.Role != identity.RoleRunner || peer.ID != "run_x" || peer.Tenant != tenant || !certs[0].NotAfter.Equal(notAfter) {
		t.Errorf("%+v %v", peer, err)
	}
	if certs[0].IsCA {
		t.Error("a leaf can sign others")
	}
	if _, _, err := k.Issue(t.Context(), authority.Leaf{Role: identity.RoleServer, ID: "x", SPKI: spki, Names: []string{"ok.example", "10.0.0.1", "bad host"}}); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("a bad name: %v", err)
	}
	if _, _, err := k.Issue(t.Context(), authority.Leaf{Role: identity.RoleServer, ID: "x", SPKI: []byte("x")}); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("a bad key: %v", err)
	}
}

func TestStatementsAndReceipts(t *testing.T) {
	k := open(t, newDir(t))
	rootKey := k.Root().PublicKey.(ed25519.PublicKey)
	hourly, _ := newKey(t)
	pub := hourly.Public().(ed25519.PublicKey)
	jws, notAfter, err := k.CertifyKey(t.Context(), "rep_x", pub)
	if err != nil {
		t.Fatal(err)
	}
	s, err := capability.VerifyStatement(jws, rootKey)
	if err != nil || s.Server != "rep_x" || !s.InForce(time.Now()) || s.InForce(notAfter) || s.KeyID != capability.KeyID(pub) {
		t.Errorf("%+v %v", s, err)
	}
	if _, err := capability.VerifyStatement(jws, pub); err == nil {
		t.Error("the statement verifies under another key")
	}

	receipt, err := k.SignReceipt(t.Context(), []byte(`{"grant":"g"}`))
	if err != nil {
		t.Fatal(err)
	}
	part := strings.Split(receipt, ".")
	var head struct {
		Typ string   `json:"typ"`
		X5c []string `json:"x5c"`
	}
	raw, err := base64.RawURLEncoding.DecodeString(part[0])
	if err == nil {
		err = json.Unmarshal(raw, &head)
	}
	if err != nil || head.Typ != "bivouac-receipt" || len(head.X5c) != 2 {
		t.Fatalf("%+v %v", head, err)
	}
	var certs []*x509.Certificate
	for _, text := range head.X5c {
		der, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		certs = append(certs, c)
	}
	if _, err := identity.VerifyChain(certs[:1], k.Root(), time.Now()); err != nil {
		t.Errorf("the receipt key does not hang from the root: %v", err)
	}
	sig, err := base64.RawURLEncoding.DecodeString(part[2])
	if err != nil || !ed25519.Verify(certs[0].PublicKey.(ed25519.PublicKey), []byte(part[0]+"."+part[1]), sig) {
		t.Errorf("the signature does not verify: %v", err)
	}
}

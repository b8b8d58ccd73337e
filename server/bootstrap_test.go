package server

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/api"
	"bivouac/server/engine"
	"bivouac/server/store"
)

func TestBootstrap(t *testing.T) {
	b := Bootstrap{Config: Default(), Tenant: "local", Principal: "alice", TokenFile: filepath.Join(t.TempDir(), "sub", "token")}
	b.Config.DataDir = filepath.Join(t.TempDir(), "data")
	p, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !p.Admin || !p.Operator || p.Name != "alice" {
		t.Errorf("made %+v", p)
	}
	fi, err := os.Stat(b.TokenFile)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", fi, err)
	}
	text, err := os.ReadFile(b.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	token, err := api.ParseToken(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	// Again: nothing new.
	if again, err := b.Run(t.Context()); err != nil || again.ID != p.ID {
		t.Errorf("%v %v", again.ID, err)
	}
	// The database knows the hash alone.
	s, err := openStore(t.Context(), b.Config)
	if err != nil {
		t.Fatal(err)
	}
	err = s.View(t.Context(), store.AsOperator("test"), func(tx *store.Tx) error {
		got, tenant, err := tx.PrincipalByToken(token.Hash())
		if err == nil && (got.ID != p.ID || tenant.Name != "local") {
			t.Errorf("the token is of %s in %s", got.ID, tenant.Name)
		}
		return err
	})
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{databaseFile, databaseFile + "-wal"} {
		content, err := os.ReadFile(filepath.Join(b.Config.DataDir, name))
		if err == nil && strings.Contains(string(content), token.Reveal()) {
			t.Errorf("%s holds the token", name)
		}
	}
}

// A disabled principal's token is worth nothing: the remedy is another one's.
func TestBootstrapAfterItsPrincipalWasDisabled(t *testing.T) {
	b := Bootstrap{Config: Default(), Tenant: "local", Principal: "alice", TokenFile: filepath.Join(t.TempDir(), "token")}
	b.Config.DataDir = filepath.Join(t.TempDir(), "data")
	alice, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := openStore(t.Context(), b.Config)
	if err != nil {
		t.Fatal(err)
	}
	second := api.NewToken()
	_, err = engine.AddOperator(t.Context(), s, engine.NewPrincipal{Tenant: "local", Name: "second", TokenHash: second.Hash()})
	if err == nil {
		err = s.Update(t.Context(), store.AsOperator("test"), func(tx *store.Tx) error { return tx.DisablePrincipal(alice.ID) })
	}
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = b.Run(t.Context())
	if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "put that token into "+b.TokenFile) {
		t.Fatalf("%v", err)
	}
	// The remedy works.
	if err := os.WriteFile(b.TokenFile, []byte(second.Reveal()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := b.Run(t.Context()); err != nil || p.Name != "second" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestBootstrapRefusals(t *testing.T) {
	dir := t.TempDir()
	b := Bootstrap{Config: Default(), Tenant: "local", Principal: "alice", TokenFile: filepath.Join(dir, "token")}
	b.Config.DataDir = filepath.Join(dir, "data")
	if _, err := b.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	lost := b
	lost.TokenFile = filepath.Join(dir, "other")
	if _, err := lost.Run(t.Context()); protocol.CodeOf(err) != protocol.CodeAlreadyExists || !strings.Contains(err.Error(), "--token-file") {
		t.Errorf("a name that is taken: %v", err)
	}
	full := b
	full.TokenFile = filepath.Join(dir, "notes")
	if err := os.WriteFile(full.TokenFile, []byte("my notes"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := full.Run(t.Context()); protocol.CodeOf(err) != protocol.CodeAlreadyExists {
		t.Errorf("a file with something else: %v", err)
	}
	if text, _ := os.ReadFile(full.TokenFile); string(text) != "my notes" {
		t.Error("the file was overwritten")
	}
	bad := b
	bad.Principal = "Not A Name"
	bad.TokenFile = filepath.Join(dir, "third")
	if _, err := bad.Run(t.Context()); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("a bad name: %v", err)
	}
	// A crash after the token was written is mended by the same command.
	half := b
	half.Principal, half.TokenFile = "bob", filepath.Join(dir, "half")
	if err := os.WriteFile(half.TokenFile, []byte(api.NewToken().Reveal()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := half.Run(t.Context()); err != nil || p.Name != "bob" {
		t.Errorf("%+v %v", p, err)
	}
	// A running server holds the directory.
	s, err := openStore(t.Context(), b.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := b.Run(t.Context()); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Errorf("a second process on one directory: %v", err)
	}
}

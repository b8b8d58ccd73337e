//go:build linux

package engine

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// tiny is an engine whose module is in a repository of the test's own.
var tiny = Engine{Name: "bivouac-tiny", Package: "bivouac/test/engines/bivouac-tiny"}

func write(t *testing.T, mode os.FileMode, text string, path ...string) {
	t.Helper()
	name := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// inRepository goes into a package of a small repository with the module of tiny, and
// returns the module's folder. The cache is the test's own too; the toolchain's is not.
func inRepository(t *testing.T) string {
	t.Helper()
	if os.Getenv("GOCACHE") == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("GOCACHE", filepath.Join(cache, "go-build"))
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	repository := t.TempDir()
	at := filepath.Join(repository, "test", "engines", tiny.Name)
	write(t, 0o644, "module bivouac\n", repository, "go.mod")
	write(t, 0o644, "module "+tiny.Package+"\n\ngo 1.26\n", at, "go.mod")
	write(t, 0o644, "", at, "go.sum")
	write(t, 0o644, "package main\n\nfunc main() { println(\"tiny 1\") }\n", at, "main.go")
	write(t, 0o644, "package adapter\n", repository, "adapter", "adapter.go")
	t.Chdir(filepath.Join(repository, "adapter"))
	return at
}

// Two who build at once get one program, which the third finds; another state of the
// module is another program.
func TestBuildsOnce(t *testing.T) {
	module := inRepository(t)
	if _, err := tiny.Find(t.Context()); !errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "make engines ENGINES=bivouac-tiny") {
		t.Errorf("before it was built: %v", err)
	}
	var said [2]bytes.Buffer
	var built [2]Program
	var both sync.WaitGroup
	for i := range built {
		both.Go(func() {
			var err error
			if built[i], _, err = tiny.Build(t.Context(), &said[i]); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	if n := strings.Count(said[0].String()+said[1].String(), "building"); n != 1 || built[0].Path != built[1].Path {
		t.Errorf("%d builds, of %q and %q", n, built[0].Path, built[1].Path)
	}
	found, err := tiny.Find(t.Context())
	if err != nil || found.Path != built[0].Path {
		t.Errorf("after it was built: %q, %v", found.Path, err)
	}
	if _, err := found.Version(t.Context()); err != nil {
		t.Error(err)
	}
	write(t, 0o644, "module "+tiny.Package+"\n\ngo 1.26.0\n", module, "go.mod")
	if _, err := tiny.Find(t.Context()); !errors.Is(err, ErrAbsent) {
		t.Errorf("with another module file: %v", err)
	}
}

// A build that fails leaves nothing that would be taken for a program.
func TestFailedBuildIsAbsent(t *testing.T) {
	module := inRepository(t)
	write(t, 0o644, "package main\n", module, "main.go")
	var said bytes.Buffer
	if _, _, err := tiny.Build(t.Context(), &said); err == nil || !strings.Contains(said.String(), "main") {
		t.Errorf("%v, and said %q", err, said.String())
	}
	if _, err := tiny.Find(t.Context()); !errors.Is(err, ErrAbsent) {
		t.Errorf("after a failed build: %v", err)
	}
}

// PATH goes first; what it has is run without the developer's own environment.
func TestPathGoesFirst(t *testing.T) {
	t.Setenv("VAULT_TOKEN", "canary-engine-0123456789")
	bin := t.TempDir()
	write(t, 0o755, "#!/bin/sh\necho \"on PATH\" $VAULT_TOKEN\n", bin, Vault.Name)
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	p, err := Vault.Find(t.Context())
	if err != nil || p.Path != filepath.Join(bin, Vault.Name) {
		t.Fatalf("%q, %v", p.Path, err)
	}
	if version, err := p.Version(t.Context()); err != nil || version != "on PATH" {
		t.Errorf("%q, %v", version, err)
	}
}

func TestAsked(t *testing.T) {
	t.Setenv(AskedVariable, "")
	if got := Vault.Asked(); got != Never {
		t.Errorf("an empty list asks for %v", got)
	}
	t.Setenv(AskedVariable, "bao vault")
	if Vault.Asked() != Must || OpenBao.Asked() != Must {
		t.Error("what is named need not be there")
	}
	t.Setenv(AskedVariable, "bao")
	if Vault.Asked() != Never || OpenBao.Asked() != Must {
		t.Error("what is not named is run")
	}
	os.Unsetenv(AskedVariable) // put back by Setenv
	if Vault.Asked() != WhereFound {
		t.Error("without a list, what is found is not run")
	}
	if found, err := Named([]string{"bao", "vault"}); err != nil || len(found) != 2 || found[0].Name != Vault.Name {
		t.Errorf("%v, %v", found, err)
	}
	if _, err := Named([]string{"vault", "valut"}); err == nil || !strings.Contains(err.Error(), `"valut"`) {
		t.Errorf("a misspelt engine: %v", err)
	}
}

//go:build linux

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"bivouac/test/e2e/stack"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// TestVaultScripts runs testdata/vault/*.txtar against every real server that is here,
// with its own command line as "vault". Each script has names of its own.
func TestVaultScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binaries, and runs real servers")
	}
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		bin, err := stack.Build()
		if err != nil {
			t.Fatal(err)
		}
		s := vaulttest.Open(t, p)
		programs := t.TempDir()
		if err := os.Symlink(p.Path, filepath.Join(programs, "vault")); err != nil {
			t.Fatal(err)
		}
		testscript.Run(t, testscript.Params{
			Dir: "testdata/vault", RequireUniqueNames: true,
			Setup: func(env *testscript.Env) error {
				for _, pair := range p.Env {
					name, value, _ := strings.Cut(pair, "=")
					env.Setenv(name, value)
				}
				prefix := s.Prefix() + "cli"
				for name, value := range map[string]string{
					"PATH": programs + ":" + bin + ":" + os.Getenv("PATH"), "HOME": filepath.Join(env.WorkDir, "home"),
					"BIVOUAC_CONFIG": filepath.Join(env.WorkDir, "login"), "VAULT_ADDR": s.Address(), "VAULT_CACERT": s.CAFile(),
					"ROOT": s.RootToken(), "PREFIX": prefix, "AUDIT": s.AuditFile(),
				} {
					env.Setenv(name, value)
				}
				file, err := os.ReadFile("testdata/vault/broker.hcl")
				if err != nil {
					return err
				}
				for name, value := range map[string]string{"PREFIX": prefix, "AUDIT": s.AuditFile()} {
					file = []byte(strings.ReplaceAll(string(file), "$"+name, value))
				}
				return os.WriteFile(filepath.Join(env.WorkDir, "broker.hcl"), file, 0o600)
			},
			Condition: func(name string) (bool, error) { // [namespaces]: the server has them
				if name != "namespaces" {
					return false, fmt.Errorf("unknown condition %q", name)
				}
				return p.Name == engine.OpenBao.Name, nil
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "capture": capture, "documents": documents, "keep": keep},
		})
	})
}

// keep FILE: writes what the last command printed into a file that is its owner's
// alone.
func keep(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: keep file")
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(ts.ReadFile("stdout")), 0o600))
}

// fakeVaults are small servers that fail as real ones do, by the variable that a
// script finds them in. What they answer is proven against real ones by the tests of
// vaultpolicy.
func fakeVaults(t *testing.T) map[string]string {
	open := map[string]any{"type": "shamir", "initialized": true, "sealed": false, "t": 3, "n": 5, "progress": 0, "version": "1.19.5"}
	sealed := map[string]any{"type": "shamir", "initialized": true, "sealed": true, "t": 3, "n": 5, "progress": 1, "version": "1.19.5"}
	denied := func() (int, any) { return 403, said("1 error occurred:\n\t* permission denied\n\n") }
	fake := func(answer func(path string) (int, any)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			status, body := answer(strings.TrimPrefix(r.URL.Path, "/v1/"))
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(body)
		})
	}
	serve := func(h http.Handler, start func(http.Handler) *httptest.Server) string {
		s := start(h)
		s.Config.ErrorLog = log.New(io.Discard, "", 0) // of clients that refuse it, as they shall
		t.Cleanup(s.Close)
		return s.URL
	}
	empty := fake(func(path string) (int, any) {
		if path == "sys/seal-status" {
			return 200, open
		}
		return 404, said()
	})
	return map[string]string{
		"VAULT_EMPTY": serve(empty, httptest.NewServer),
		"VAULT_TLS":   serve(empty, httptest.NewTLSServer),
		"VAULT_SEALED": serve(fake(func(path string) (int, any) {
			if path == "sys/seal-status" {
				return 200, sealed
			}
			return 503, said("Vault is sealed")
		}), httptest.NewServer),
		"VAULT_DENIES": serve(fake(func(path string) (int, any) {
			switch path {
			case "sys/seal-status":
				return 200, open
			case "auth/token/lookup-self":
				return 200, framed(map[string]any{"accessor": "a", "policies": []string{"default", "ops"}})
			case "sys/capabilities-self":
				return 200, framed(map[string]any{"capabilities": []string{"deny"}})
			}
			return denied()
		}), httptest.NewServer),
		"VAULT_STRANGER": serve(fake(func(path string) (int, any) {
			if path == "sys/seal-status" {
				return 200, open
			}
			return denied()
		}), httptest.NewServer),
	}
}

// framed is a success in the servers' form.
func framed(fields map[string]any) map[string]any {
	return map[string]any{"request_id": "r", "lease_id": "", "lease_duration": 0, "data": fields, "auth": nil}
}

func said(errors ...string) map[string]any {
	return map[string]any{"errors": append([]string{}, errors...)}
}

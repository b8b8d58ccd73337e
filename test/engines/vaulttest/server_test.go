//go:build linux

package vaulttest_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

func TestMain(m *testing.M) { os.Exit(vaulttest.Main(m)) }

// canary is what the tests put into secrets.
const canary = "canary-vaulttest-0123456789"

// mounted makes a KV mount of the test's own with one secret, and a policy that
// reads it.
func mounted(t *testing.T, s *vaulttest.Server, root *api.Client) (mount, policy string) {
	t.Helper()
	prefix := s.Prefix()
	mount, policy = prefix+"kv", prefix+"reader"
	s.MountKV(t, root, mount)
	if _, err := root.KVv2(mount).Put(t.Context(), "weather", map[string]any{"value": canary}); err != nil {
		t.Fatal(err)
	}
	if err := root.Sys().PutPolicy(policy, fmt.Sprintf("path %q { capabilities = [\"read\"] }", mount+"/data/*")); err != nil {
		t.Fatal(err)
	}
	return mount, policy
}

func reads(t *testing.T, c *api.Client, mount string) {
	t.Helper()
	got, err := c.KVv2(mount).Get(t.Context(), "weather")
	if err != nil {
		t.Fatal(err)
	}
	if got.Data["value"] != canary {
		t.Errorf("the secret is %v", got.Data["value"])
	}
}

// refused expects an answer of the server, and not that there is none.
func refused(t *testing.T, what string, err error, status int) {
	t.Helper()
	e, ok := errors.AsType[*api.ResponseError](err)
	if !ok || e.StatusCode != status {
		t.Errorf("%s: %v, want status %d", what, err, status)
	}
}

// A token reads what its policy names and nothing else, and is over when its
// accessor is revoked; another one is not.
func TestRevokedTokenIsDenied(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Open(t, p)
		root := s.Root(t)
		mount, policy := mounted(t, s, root)
		token := func() *api.Secret {
			made, err := root.Auth().Token().Create(&api.TokenCreateRequest{Policies: []string{policy}, NoDefaultPolicy: true, TTL: "10m"})
			if err != nil {
				t.Fatal(err)
			}
			return made
		}
		taken, kept := token(), token()
		holder, other := s.Client(t, taken.Auth.ClientToken), s.Client(t, kept.Auth.ClientToken)
		reads(t, holder, mount)
		_, err := holder.KVv2(mount).Put(t.Context(), "weather", map[string]any{"value": "changed"})
		refused(t, "a write without the right", err, http.StatusForbidden)

		asked := time.Now()
		if err := root.Auth().Token().RevokeAccessor(taken.Auth.Accessor); err != nil {
			t.Fatal(err)
		}
		_, err = holder.KVv2(mount).Get(t.Context(), "weather")
		refused(t, "a read after the revocation", err, http.StatusForbidden)
		t.Logf("bench name=%s_revoke_to_denied value=%.3g unit=ms", p.Name, ms(time.Since(asked)))
		reads(t, other, mount)
	})
}

// Two tests on one server have it to themselves, and it is one process.
func TestOpenShares(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		one, two := vaulttest.Open(t, p), vaulttest.Open(t, p)
		if one.PID() != two.PID() {
			t.Error("a second server was started")
		}
		if one.Prefix() == two.Prefix() {
			t.Error("two tests have the same prefix")
		}
		own := vaulttest.Start(t, p)
		if own.PID() == one.PID() {
			t.Error("a server of one's own is the shared one")
		}
		_, err := own.Client(t, one.RootToken()).Auth().Token().LookupSelf()
		refused(t, "the token of another server", err, http.StatusForbidden)
	})
}

func TestSealedServesNothing(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Start(t, p)
		root := s.Root(t)
		mount, _ := mounted(t, s, root)
		reads(t, root, mount)
		s.Seal(t)
		_, err := root.KVv2(mount).Get(t.Context(), "weather")
		refused(t, "a read of a sealed server", err, http.StatusServiceUnavailable)
		s.Unseal(t)
		reads(t, root, mount)
	})
}

// What was written is there after an end and after a power failure, on the same
// address; the server is sealed until somebody unseals it.
func TestStartsAgainOnItsStorage(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		began := time.Now()
		s := vaulttest.Start(t, p)
		t.Logf("bench name=%s_start value=%.3g unit=ms", p.Name, ms(time.Since(began)))
		root := s.Root(t)
		mount, _ := mounted(t, s, root)
		for name, end := range map[string]func(testing.TB){"stop": s.Stop, "kill": s.Kill} {
			pid := s.PID()
			end(t)
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: process %d is there (%v)", name, pid, err)
			}
			if _, err := root.KVv2(mount).Get(t.Context(), "weather"); err == nil {
				t.Errorf("%s: a server that is gone answers", name)
			}
			s.Start(t)
			_, err := root.KVv2(mount).Get(t.Context(), "weather")
			refused(t, name+": a read before the unsealing", err, http.StatusServiceUnavailable)
			s.Unseal(t)
			reads(t, root, mount)
		}
	})
}

// The process listens on the loopback alone, and its folder has no key and no token.
func TestNothingButLoopback(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Start(t, p)
		listening := listeners(t, s.PID())
		if len(listening) == 0 {
			t.Error("no listener was found, not even the server's own")
		}
		for _, address := range listening {
			if address != "0100007F" { // 127.0.0.1, as the kernel writes it
				t.Errorf("the server listens on %s", address)
			}
		}
		dir := filepath.Dir(s.AuditFile())
		err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			b, err := os.ReadFile(name)
			if strings.Contains(string(b), s.RootToken()) {
				t.Errorf("%s holds the root token", name)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// listeners of a process: the addresses of its TCP sockets in state LISTEN.
func listeners(t *testing.T, pid int) (addresses []string) {
	t.Helper()
	mine := map[string]bool{}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("the files of process %d: %v", pid, err)
	}
	for _, name := range files {
		if link, err := os.Readlink(name); err == nil && strings.HasPrefix(link, "socket:[") {
			mine[strings.Trim(link, "socket:[]")] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/net/" + table)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			const local, state, inode = 1, 3, 9
			if col := strings.Fields(lines.Text()); len(col) > inode && col[state] == "0A" && mine[col[inode]] {
				addresses = append(addresses, strings.SplitN(col[local], ":", 2)[0])
			}
		}
	}
	slices.Sort(addresses)
	return slices.Compact(addresses)
}

// A namespace has its own mounts: a token of one is nothing in another.
func TestNamespace(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		s := vaulttest.Open(t, p)
		name, ok := s.Namespace(t)
		if !ok {
			t.Skip("this server has no namespaces")
		}
		inside := s.Root(t)
		inside.SetNamespace(name)
		mount, policy := mounted(t, s, inside)
		made, err := inside.Auth().Token().Create(&api.TokenCreateRequest{Policies: []string{policy}, TTL: "10m"})
		if err != nil {
			t.Fatal(err)
		}
		holder := s.Client(t, made.Auth.ClientToken)
		_, err = holder.KVv2(mount).Get(t.Context(), "weather")
		refused(t, "a read outside of the namespace", err, http.StatusForbidden)
		holder.SetNamespace(name)
		reads(t, holder, mount)
	})
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

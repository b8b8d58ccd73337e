package sandboxtest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

const canary = "canary-of-the-host"

// fixture is what an attacker could reach on the host.
type fixture struct {
	dir      string // readable by all, so that only the sandbox hides it
	abstract string // name of a listener outside
	port     string
	victim   int // pid of a process with the sandbox's uid
}

func (f *fixture) path(parts ...string) string {
	return filepath.Join(append([]string{f.dir}, parts...)...)
}

// newFixture makes files, listeners and a victim.
func (c Config) newFixture(t *testing.T) *fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "bivouac-suite-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	f := &fixture{dir: dir, abstract: "@" + filepath.Base(dir)}
	check(t, os.Chmod(dir, 0o755))
	f.files(t, c.UID)
	f.listen(t, "unix", f.path("outside", "socket"))
	check(t, os.Chmod(f.path("outside", "socket"), 0o777))
	f.listen(t, "unix", f.abstract)
	f.port = f.listen(t, "tcp", "127.0.0.1:0")
	f.victim = c.victim(t)
	return f
}

func (f *fixture) files(t *testing.T, uid int) {
	for name, mode := range map[string]os.FileMode{
		"outside/secret": 0o644, "other/workspace/secret": 0o644, "state/journal": 0o644,
		"rootonly/secret": 0o600, "given/file": 0o666,
		"workspace/.git/config": 0o666, "workspace/a/b/policy": 0o666, "workspace/free": 0o666,
	} {
		check(t, os.MkdirAll(filepath.Dir(f.path(name)), 0o755))
		check(t, os.WriteFile(f.path(name), []byte(canary), mode))
		check(t, os.Chmod(f.path(name), mode)) // whatever the umask
	}
	for name, target := range map[string]string{
		"link": f.path("outside", "secret"), "seen": "/seen/secret", "given": "/given/file",
	} {
		check(t, os.Symlink(target, f.path("workspace", name)))
	}
	if os.Geteuid() == 0 {
		check(t, os.Chown(f.path("given"), uid, uid))
		check(t, os.Chown(f.path("given", "file"), uid, uid))
	}
}

// listen greets whoever connects.
func (f *fixture) listen(t *testing.T, network, address string) string {
	l, err := net.Listen(network, address)
	check(t, err)
	var greeting sync.WaitGroup
	greeting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, canary)
			c.Close()
		}
	})
	t.Cleanup(func() { l.Close(); greeting.Wait() })
	return l.Addr().String()
}

// victim starts a process of the host with the uid that sandboxed ones have
// outside, so that only the sandbox stands between them.
func (c Config) victim(t *testing.T) int {
	cmd := c.bare("victim")
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	if _, err := io.ReadAtLeast(out, make([]byte, 3), 3); err != nil {
		t.Fatalf("the victim did not start: %v", err)
	}
	return cmd.Process.Pid
}

// bare is the attacker without a sandbox, with the sandbox's uid.
func (c Config) bare(args ...string) *exec.Cmd {
	cmd := exec.Command(c.Attacker, args...)
	cmd.Env = []string{"CANARY=" + canary}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.UID)}}
	}
	return cmd
}

// socketpair is a worker's channel: our end and its.
func socketpair(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	check(t, err)
	ours, theirs = os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// openDescriptors counts this process's, the listing's own left out.
func openDescriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	return len(entries) - 1
}

// children lists this process's direct children, dead ones included.
func children(t *testing.T) map[int]bool {
	entries, err := os.ReadDir("/proc")
	check(t, err)
	all := map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue
		}
		var state string
		var parent int
		if _, err := fmt.Sscan(afterName(string(text)), &state, &parent); err == nil && parent == os.Getpid() {
			all[pid] = true
		}
	}
	return all
}

func afterName(stat string) string {
	for i := len(stat) - 1; i >= 0; i-- {
		if stat[i] == ')' {
			return stat[i+1:]
		}
	}
	return ""
}

func owner(st os.FileInfo) int {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}

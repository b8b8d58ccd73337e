//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bivouac/test/e2e/stack"
)

// namespace is a network of its own, by name and by path.
type namespace struct {
	name, path string
	address    string
}

// twoNetworks makes two namespaces that see each other over one cable. It needs
// root, and skips loudly without it.
func twoNetworks(t *testing.T) (control, edge namespace) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED LOUDLY: network namespaces need root")
	}
	for _, tool := range []string{"ip", "nft", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED LOUDLY: %v; .ci/deps installs it", err)
		}
	}
	id := fmt.Sprintf("bv%d", os.Getpid())
	control, edge = newNamespace(t, id+"c", "10.231.77.1"), newNamespace(t, id+"e", "10.231.77.2")
	must(t, "ip", "-n", control.name, "link", "add", id+"v", "type", "veth", "peer", "name", id+"w", "netns", edge.name)
	for dev, n := range map[string]namespace{id + "v": control, id + "w": edge} {
		must(t, "ip", "-n", n.name, "addr", "add", n.address+"/30", "dev", dev)
		must(t, "ip", "-n", n.name, "link", "set", dev, "up")
		must(t, "ip", "-n", n.name, "link", "set", "lo", "up")
	}
	return control, edge
}

func newNamespace(t *testing.T, name, address string) namespace {
	t.Helper()
	must(t, "ip", "netns", "add", name)
	t.Cleanup(func() { must(t, "ip", "netns", "del", name) })
	return namespace{name: name, path: filepath.Join("/run/netns", name), address: address}
}

func must(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// Firewalls that drop UDP. What comes in vanishes without a word, as it does in
// most networks; what goes out is refused to the sender's face.
const (
	dropSilently = "table inet firewall { chain in { type filter hook input priority 0; meta l4proto udp drop; }; }"
	dropLoudly   = "table inet firewall { chain out { type filter hook output priority 0; meta l4proto udp drop; }; }"
)

// firewall holds rules until they are lifted.
func (n namespace) firewall(t *testing.T, rules string) (lift func()) {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", n.name, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	return func() { must(t, "ip", "netns", "exec", n.name, "nft", "delete", "table", "inet", "firewall") }
}

// place runs processes and sockets of the stack in the namespace. `ip netns exec`
// would hide control groups behind a fresh /sys; nsenter changes the network alone.
func (n namespace) place() stack.Place {
	return stack.Place{
		Host: n.address,
		Into: func(cmd *exec.Cmd) {
			cmd.Args = append([]string{"nsenter", "--net=" + n.path, cmd.Path}, cmd.Args[1:]...)
			cmd.Path, cmd.Err = exec.LookPath("nsenter")
		},
		Listen: func(network, address string) (l net.Listener, err error) {
			err = n.inside(func() error {
				l, err = net.Listen(network, address)
				return err
			})
			return l, err
		},
		Dial: func(ctx context.Context, network, address string) (c net.Conn, err error) {
			err = n.inside(func() error {
				c, err = (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, network, address)
				return err
			})
			return c, err
		},
	}
}

// inside runs f on a thread that is in the namespace: a socket belongs to the
// network of the thread that made it.
func (n namespace) inside(f func() error) error {
	runtime.LockOSThread()
	here, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer here.Close()
	there, err := os.Open(n.path)
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = f()
	if back := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, back) // still locked: the thread ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

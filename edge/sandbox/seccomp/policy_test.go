//go:build linux

package seccomp

import (
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// judge runs the program on one call, as the kernel does. The machine of
// x/net/bpf reads words big-endian, so each is written that way.
func judge(t *testing.T, rules []rule, archID uint32, nr uint32, args ...uint64) uint32 {
	t.Helper()
	insts, err := assemble(rules)
	if err != nil {
		t.Fatal(err)
	}
	vm, err := bpf.NewVM(insts)
	if err != nil {
		t.Fatal(err)
	}
	word := make([]byte, 64)
	binary.BigEndian.PutUint32(word[offsetNumber:], nr)
	binary.BigEndian.PutUint32(word[offsetArch:], archID)
	for i, a := range args {
		binary.BigEndian.PutUint32(word[offsetArgs+8*i:], uint32(a))
		binary.BigEndian.PutUint32(word[offsetArgs+8*i+4:], uint32(a>>32))
	}
	out, err := vm.Run(word)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(out)
}

const allow = uint32(unix.SECCOMP_RET_ALLOW)

func refused(errno uint32) uint32 { return unix.SECCOMP_RET_ERRNO | errno }

// TestPolicies is the table of what passes and what does not. INV-12.
func TestPolicies(t *testing.T) {
	ours, err := table()
	if err != nil {
		t.Skip(err)
	}
	const garbage = 1 << 40 // a bit that the kernel does not read
	for _, c := range []struct {
		call                 string
		args                 []uint64
		code, worker, locked uint32
	}{
		{"read", nil, allow, allow, allow},
		{"openat", nil, allow, allow, allow},
		{"execve", nil, allow, allow, refused(errnoPermission)},
		{"execveat", nil, allow, refused(errnoPermission), refused(errnoPermission)},
		{"memfd_create", nil, allow, refused(errnoPermission), refused(errnoPermission)},
		{"ptrace", nil, refused(errnoPermission), refused(errnoPermission), refused(errnoPermission)},
		{"memfd_secret", nil, refused(errnoPermission), refused(errnoPermission), refused(errnoPermission)},
		{"clone3", nil, refused(errnoNoCall), refused(errnoNoCall), refused(errnoNoCall)},
		{"clone", []uint64{unix.CLONE_VM | unix.CLONE_THREAD}, allow, allow, allow},
		{"clone", []uint64{uint64(unix.SIGCHLD)}, allow, allow, refused(errnoPermission)},
		{"clone", []uint64{unix.CLONE_NEWUSER}, refused(errnoPermission), refused(errnoPermission), refused(errnoPermission)},
		{"clone", []uint64{unix.CLONE_THREAD | unix.CLONE_NEWNET | garbage}, refused(errnoPermission), refused(errnoPermission), refused(errnoPermission)},
		{"ioctl", []uint64{0, unix.TIOCGWINSZ}, allow, allow, allow},
		{"ioctl", []uint64{0, unix.TIOCSTI | garbage}, refused(errnoPermission), refused(errnoPermission), refused(errnoPermission)},
		{"socket", []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, allow, refused(errnoPermission), refused(errnoPermission)},
		{"socket", []uint64{unix.AF_INET6}, allow, refused(errnoPermission), refused(errnoPermission)},
		{"socket", []uint64{unix.AF_NETLINK, 0, unix.NETLINK_ROUTE}, allow, refused(errnoPermission), refused(errnoPermission)},
		{"socket", []uint64{unix.AF_NETLINK, 0, unix.NETLINK_NETFILTER}, refused(errnoNoFamily), refused(errnoPermission), refused(errnoPermission)},
		{"socket", []uint64{unix.AF_VSOCK}, refused(errnoNoFamily), refused(errnoPermission), refused(errnoPermission)},
		{"socket", []uint64{unix.AF_PACKET | garbage}, refused(errnoNoFamily), refused(errnoPermission), refused(errnoPermission)},
		{"socketpair", []uint64{unix.AF_UNIX}, allow, refused(errnoPermission), refused(errnoPermission)},
		{"socketpair", []uint64{unix.AF_TIPC}, refused(errnoNoFamily), refused(errnoPermission), refused(errnoPermission)},
		{"connect", nil, allow, refused(errnoPermission), refused(errnoPermission)},
	} {
		nr, ok := ours.SyscallNames[c.call]
		if !ok {
			t.Errorf("no call %s", c.call)
			continue
		}
		for name, p := range map[string]struct {
			rules []rule
			want  uint32
		}{"code": {code(), c.code}, "worker": {worker(), c.worker}, "locked": {locked(), c.locked}} {
			if got := judge(t, p.rules, uint32(ours.ID), uint32(nr), c.args...); got != p.want {
				t.Errorf("%s: %s%v gives %#x, want %#x", name, c.call, c.args, got, p.want)
			}
		}
	}
}

func TestGate(t *testing.T) {
	ours, err := table()
	if err != nil {
		t.Skip(err)
	}
	const i386, x32 = 0x40000003, 0x40000000
	for _, c := range []struct {
		name     string
		arch, nr uint32
		want     uint32
	}{
		{"a known call", uint32(ours.ID), lastKnownCall - 1, allow},
		{"a newer call", uint32(ours.ID), lastKnownCall + 1, refused(errnoNoCall)},
		{"an x32 call", uint32(ours.ID), x32, refused(errnoNoCall)},
		{"a 32-bit call", i386, 0, unix.SECCOMP_RET_KILL_PROCESS},
	} {
		for _, rules := range [][]rule{code(), worker(), locked()} {
			if got := judge(t, rules, c.arch, c.nr); got != c.want {
				t.Errorf("%s gives %#x, want %#x", c.name, got, c.want)
			}
		}
	}
}

// TestNames finds a rule that is misspelt: every name must exist on amd64 or be
// one that only other architectures have.
func TestNames(t *testing.T) {
	ours, err := table()
	if err != nil {
		t.Skip(err)
	}
	elsewhere := []string{"umount", "vm86", "vm86old", "process_mrelease"}
	for _, r := range slices.Concat(code(), locked()) {
		if _, ok := ours.SyscallNames[r.call]; !ok && ours.Name == "x86_64" && !slices.Contains(elsewhere, r.call) {
			t.Errorf("no system call is named %q", r.call)
		}
	}
}

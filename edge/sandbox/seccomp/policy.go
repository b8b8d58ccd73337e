// Package seccomp owns the system-call policies of sandbox A and sandbox B and
// the filter with which a worker locks itself.
//
// It guarantees that a call of a foreign ABI (32-bit calls on a 64-bit kernel,
// x32) and a call newer than the policy never reach the kernel, that socket
// families are an allow-list in B and that A opens no socket at all (INV-12).
// It refuses architectures whose calling convention it does not know. Policies
// are proven here call by call, and by sandboxtest's attacker.
//
// Of go-seccomp-bpf only the tables of call numbers are used. Its assembler
// lets foreign ABIs pass to the default action, compares arguments the kernel
// reads as 32 bits by all 64 (CVE-2019-10063), and after a condition that does
// not hold goes on to compare call numbers with the argument it had loaded.
package seccomp

// Error numbers that are the same on every architecture supported here.
const (
	errnoPermission = 1  // EPERM
	errnoNoCall     = 38 // ENOSYS
	errnoNoFamily   = 97 // EAFNOSUPPORT
)

// lastKnownCall is the newest system call the policies were judged against
// (open_tree_attr). Anything newer gets ENOSYS, which programs handle.
const lastKnownCall = 467

// rule denies a call, always or when all tests hold.
type rule struct {
	call  string
	errno uint32
	when  []test
}

// test looks at the low 32 bits of one argument: all that the kernel reads of
// those tested here.
type test struct {
	arg  int
	kind kind
	bits uint32
	set  []uint32
}

type kind int

const (
	anyBit kind = iota // one of bits is set
	noBit              // none of bits is set
	in                 // equal to one of set
	notIn              // equal to none of set
)

// deny refuses calls whatever their arguments.
func deny(calls ...string) []rule {
	var all []rule
	for _, c := range calls {
		all = append(all, rule{call: c, errno: errnoPermission})
	}
	return all
}

// everywhere is denied in both sandboxes: it reaches other processes, keys, the
// kernel's program loaders, the mount table, or makes namespaces.
func everywhere() []rule {
	all := deny(
		"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp",
		"process_madvise", "process_mrelease", "migrate_pages", "move_pages",

		"io_uring_setup", "io_uring_enter", "io_uring_register",
		"keyctl", "add_key", "request_key",
		"bpf", "perf_event_open", "userfaultfd",
		"lookup_dcookie", "fanotify_init", "fanotify_mark",

		"mount", "umount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree",
		"open_tree_attr", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
		"statmount", "listmount", "name_to_handle_at", "open_by_handle_at",
		"unshare", "setns", "mknod", "mknodat",

		"kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
		"create_module", "get_kernel_syms", "query_module", "reboot", "swapon", "swapoff",
		"acct", "syslog", "quotactl", "quotactl_fd", "nfsservctl", "vhangup", "uselib",
		"iopl", "ioperm", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex",
		"sethostname", "setdomainname", "personality", "modify_ldt", "vm86", "vm86old",
		"lsm_set_self_attr", "memfd_secret")
	return append(all,
		// clone3 hides its flags behind a pointer; libraries fall back to clone.
		rule{call: "clone3", errno: errnoNoCall},
		// The CLONE_NEW* bits. That of CLONE_NEWTIME is part of a signal number here.
		rule{call: "clone", errno: errnoPermission, when: []test{{arg: 0, kind: anyBit, bits: 0x7e020000}}},
		// TIOCSTI and TIOCLINUX type into a terminal.
		rule{call: "ioctl", errno: errnoPermission, when: []test{{arg: 1, kind: in, set: []uint32{0x5412, 0x541c}}}})
}

// Socket families of B: harmless in an empty network namespace. Go, Node and
// glibc list interfaces through route netlink, so protocol 0 of netlink passes.
const (
	familyUnix    = 1
	familyInet    = 2
	familyInet6   = 10
	familyNetlink = 16

	netlinkRoute = 0
)

// code is the policy of B.
func code() []rule {
	return append(everywhere(),
		rule{call: "socket", errno: errnoNoFamily, when: []test{
			{arg: 0, kind: notIn, set: []uint32{familyUnix, familyInet, familyInet6, familyNetlink}},
		}},
		rule{call: "socket", errno: errnoNoFamily, when: []test{
			{arg: 0, kind: in, set: []uint32{familyNetlink}},
			{arg: 2, kind: notIn, set: []uint32{netlinkRoute}},
		}},
		rule{call: "socketpair", errno: errnoNoFamily, when: []test{
			{arg: 0, kind: notIn, set: []uint32{familyUnix}},
		}})
}

// worker is the policy of A, which has one socket, connected for it. Its own
// execution passes; there is nothing else to execute, by name or without.
func worker() []rule {
	return append(everywhere(), deny(
		"socket", "socketpair", "connect", "bind", "listen", "accept", "accept4",
		"execveat", "memfd_create")...)
}

// locked is what a running worker adds: no execution and no process. Threads pass.
func locked() []rule {
	return append(worker(), append(deny("execve", "fork", "vfork"),
		rule{call: "clone", errno: errnoPermission, when: []test{{arg: 0, kind: noBit, bits: 0x00010000}}})...)
}

// Package seccomp owns the system-call policies of sandbox A and sandbox B and
// the filter with which a worker locks itself.
//
// It guarantees that a call of a foreign ABI (32-bit calls on a 64-bit kernel,
// x32) and a call newer than the policy never reach the kernel, that socket
// families are an allow-list in B and that A opens no socket at all (INV-12).
// It refuses architectures whose calling convention it does not know. The
// policies are proven by sandboxtest's attacker; the assembly by go test alone.
package seccomp

// EPERM and friends as the kernel's filter protocol numbers them on every
// architecture supported here.
const (
	errnoPermission = 1  // EPERM
	errnoNoCall     = 38 // ENOSYS
	errnoNoFamily   = 97 // EAFNOSUPPORT
)

// Socket families of B: harmless in an empty network namespace. Go, Node and
// glibc list interfaces through route netlink, so protocol 0 of netlink passes.
const (
	familyUnix    = 1
	familyInet    = 2
	familyInet6   = 10
	familyNetlink = 16

	netlinkRoute = 0
)

// namespaceFlags are the CLONE_NEW* bits of clone(2)'s first argument. The bit
// of CLONE_NEWTIME means a signal number there, and unshare is denied whole.
const namespaceFlags = 0x7e020000

// lastKnownCall is the newest system call the policies were judged against
// (open_tree_attr). Anything newer gets ENOSYS, which programs handle.
const lastKnownCall = 467

// escapes are denied in both sandboxes: they reach other processes, keys, the
// kernel's program loaders or the mount table.
var escapes = []string{
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
	"lsm_set_self_attr", "memfd_secret",
}

// sockets are what A may not do with sockets: it has one, connected for it.
var sockets = []string{
	"socket", "socketpair", "connect", "bind", "listen", "accept", "accept4",
	"socketcall",
}

// executions are what a locked worker may not start. Threads pass.
var executions = []string{"execve", "execveat", "fork", "vfork", "memfd_create"}

package bubblewrap

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"

	"golang.org/x/sys/unix"
)

// Identity inside. It is a namespace's: no such user needs to exist.
const (
	insideUID = 1000
	insideGID = 1000
)

// firstFile is the number of the first descriptor after standard error.
const firstFile = 3

// layout collects bwrap's arguments and the descriptors they name. What is bound
// is opened here and passed as a descriptor: bwrap refuses if the path leads
// elsewhere by the time it mounts. It is filled on the spawning thread, whose
// mount namespace counts.
type layout struct {
	stage *stage
	args  []string
	files []*os.File // descriptor firstFile+i of bwrap
	keep  int        // files that stay open here after the start
}

func (l *layout) add(args ...string) { l.args = append(l.args, args...) }

// pass hands f to bwrap and returns its number there. The layout closes f.
func (l *layout) pass(f *os.File) string {
	l.files = append(l.files, f)
	return strconv.Itoa(firstFile + len(l.files) - 1)
}

// bind shows a host path inside.
func (l *layout) bind(option, host, inside string) error {
	at, err := l.stage.path(host)
	if err != nil {
		return err
	}
	fd, err := unix.Open(at, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s for the sandbox: %w", host, err)
	}
	if sameFile(fd, "/") {
		unix.Close(fd)
		return protocol.Errorf(protocol.CodeInvalidArgument, "%s leads to the root of this machine, which no sandbox gets", host)
	}
	l.add(option, l.pass(os.NewFile(uintptr(fd), at)), inside)
	return nil
}

func sameFile(fd int, path string) bool {
	var one, other unix.Stat_t
	return unix.Fstat(fd, &one) == nil && unix.Stat(path, &other) == nil && one.Dev == other.Dev && one.Ino == other.Ino
}

// sealed passes text that bwrap reads to its end.
func (l *layout) sealed(name string, text []byte) (string, error) {
	f, err := memory(name, text)
	if err != nil {
		return "", err
	}
	return l.pass(f), nil
}

func (l *layout) close() {
	for _, f := range l.files[l.keep:] {
		f.Close()
	}
	l.files = nil
}

// memory is an anonymous file positioned at its start.
func memory(name string, text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make an anonymous file: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err = f.Write(text); err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("fill an anonymous file: %w", err)
	}
	return f, nil
}

// argFile is the layout's arguments as --args reads them: not on the command
// line, where any user of the host sees environment and paths.
func (l *layout) argFile() ([]byte, error) {
	for _, a := range l.args {
		if strings.ContainsRune(a, 0) {
			return nil, fmt.Errorf("an argument of the sandbox has a NUL byte")
		}
	}
	return []byte(strings.Join(l.args, "\x00") + "\x00"), nil
}

// confine adds what both roles share.
func (b *Backend) confine(l *layout, p sandbox.Process) {
	l.add("--unshare-user", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup",
		"--hostname", "sandbox",
		"--uid", strconv.Itoa(insideUID), "--gid", strconv.Itoa(insideGID),
		"--die-with-parent", "--new-session", "--clearenv")
	if !b.breach.shareNet {
		l.add("--unshare-net")
	}
	if !b.breach.sharePID {
		l.add("--unshare-pid")
	}
	if !b.breach.userns {
		l.add("--disable-userns")
	}
	if b.breach.capabilities {
		l.add("--cap-add", "ALL")
	}
	env := p.Env
	if b.breach.inheritEnv {
		env = append(os.Environ(), env...)
	}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		l.add("--setenv", name, value)
	}
}

// workerRoot is the file tree of sandbox A: the binds, and nothing else. There
// is no writable place, no /proc and no /dev, so there is nothing to execute but
// what the binds show. /tmp is empty and read-only.
func (b *Backend) workerRoot(l *layout, p sandbox.Process) error {
	for _, m := range p.Binds {
		if err := l.bind("--ro-bind-fd", m.Host, m.Inside); err != nil {
			return err
		}
	}
	l.add("--dir", "/tmp")
	return b.breaches(l)
}

// codeRoot is the file tree of sandbox B.
func (b *Backend) codeRoot(l *layout, p sandbox.Process, limits sandbox.Limits, tree *workspace) error {
	if err := b.system(l); err != nil {
		return err
	}
	shm := strconv.FormatInt(min(limits.MemoryBytes/4, limits.DiskBytes), 10)
	tmp := strconv.FormatInt(min(limits.MemoryBytes/2, limits.DiskBytes), 10)
	dev := "--dev"
	if b.breach.capabilities {
		dev = "--tmpfs" // --dev leaves bwrap's namespace, whose capabilities count, for an inner one
	}
	l.add("--proc", "/proc", dev, "/dev",
		"--perms", "1777", "--size", shm, "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
		"--perms", "1777", "--size", tmp, "--tmpfs", "/tmp")
	if tree != nil {
		if err := tree.mount(l, b.breach); err != nil {
			return err
		}
	}
	for _, m := range p.Binds {
		option := "--ro-bind-fd"
		if m.Writable {
			option = "--bind-fd"
		}
		if err := l.bind(option, m.Host, m.Inside); err != nil {
			return err
		}
	}
	return b.breaches(l)
}

// system shows /usr, the host's way of reaching it from / and a minimal /etc.
func (b *Backend) system(l *layout) error {
	if err := l.bind("--ro-bind-fd", "/usr", "/usr"); err != nil {
		return err
	}
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		st, err := os.Lstat(dir)
		switch {
		case err != nil:
			continue
		case st.Mode()&os.ModeSymlink != 0: // merged /usr
			target, err := os.Readlink(dir)
			if err != nil {
				return err
			}
			l.add("--symlink", target, dir)
		case st.IsDir():
			if err := l.bind("--ro-bind-fd", dir, dir); err != nil {
				return err
			}
		}
	}
	etc, err := b.etc()
	if err != nil {
		return err
	}
	return etc.add(l)
}

// breaches opens the holes that are in the file tree.
func (b *Backend) breaches(l *layout) error {
	if b.breach.sharePID {
		if err := l.bind("--ro-bind-fd", "/proc", "/proc"); err != nil {
			return err
		}
	}
	if b.breach.hostDevices {
		l.add("--dev-bind", "/dev", "/dev")
	}
	return nil
}

//go:build linux

// Command init is the first process of vmtest's machines: it leaves the initial
// file system, mounts control groups as the machine's plan says, runs the plan's
// program, prints its exit code and ends the machine.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// plan is /plan.json of the image.
type plan struct {
	Layout string     // v1, v2 or delegated
	UID    int        // of the programs
	Run    [][]string // one after the other
	Env    []string
}

func main() {
	code, err := run()
	fmt.Printf("\nvmtest: exit %d %v\n", code, err)
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil {
		fmt.Println(err)
	}
}

func run() (int, error) {
	if len(os.Args) < 2 || os.Args[1] != "moved" {
		return 1, moveRoot()
	}
	text, err := os.ReadFile("/plan.json")
	if err != nil {
		return 1, err
	}
	var p plan
	if err := json.Unmarshal(text, &p); err != nil {
		return 1, err
	}
	if err := p.mount(); err != nil {
		return 1, err
	}
	for _, argv := range p.Run {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/tmp", p.Env, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(p.UID), Gid: uint32(p.UID)}}
		if err := p.start(cmd); err != nil {
			return 1, err
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); errors.As(err, &exit) {
			return max(exit.ExitCode(), 1), nil
		} else if err != nil {
			return 1, err
		}
	}
	return 0, nil
}

// moveRoot goes on in a file system that can be left by pivot_root, which the
// initial one cannot.
func moveRoot() error {
	const to = "/new"
	if err := errors.Join(os.Mkdir(to, 0o755), unix.Mount("root", to, "tmpfs", 0, "mode=0755")); err != nil {
		return err
	}
	err := filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "/" {
			return err
		}
		if path == to {
			return fs.SkipDir
		}
		return copyEntry(path, to+path, d)
	})
	if err != nil {
		return err
	}
	if err := errors.Join(os.Chdir(to), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), os.Chdir("/")); err != nil {
		return err
	}
	return unix.Exec("/init", []string{"/init", "moved"}, os.Environ())
}

func copyEntry(from, to string, d fs.DirEntry) error {
	switch {
	case d.IsDir():
		return os.Mkdir(to, 0o755)
	case d.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case d.Type().IsRegular():
		b, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		return errors.Join(os.WriteFile(to, b, 0o755), os.Remove(from))
	}
	return nil
}

const (
	groups = "/sys/fs/cgroup"
	unit   = groups + "/user.slice/bivouac.service"
)

func (p plan) mount() error {
	for _, m := range []struct{ what, at, options string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"devtmpfs", "/dev", ""},
		{"tmpfs", "/tmp", "mode=1777"}, {"tmpfs", "/mnt", "mode=0755"},
	} {
		if err := errors.Join(os.MkdirAll(m.at, 0o755), unix.Mount(m.what, m.at, m.what, 0, m.options)); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	if p.Layout == "v1" {
		if err := unix.Mount("tmpfs", groups, "tmpfs", 0, "mode=0755"); err != nil {
			return err
		}
		for _, c := range []string{"memory", "pids", "cpu", "freezer"} {
			at := filepath.Join(groups, c)
			if err := errors.Join(os.Mkdir(at, 0o755), unix.Mount("cgroup", at, "cgroup", 0, c)); err != nil {
				return fmt.Errorf("mount %s: %w", at, err)
			}
		}
		return nil
	}
	if err := unix.Mount("cgroup2", groups, "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", groups, err)
	}
	if p.Layout != "delegated" {
		return nil
	}
	return p.delegate()
}

// delegate does what systemd does for a user's unit with Delegate=yes.
func (p plan) delegate() error {
	const all = "+memory +pids +cpu"
	err := errors.Join(os.WriteFile(groups+"/cgroup.subtree_control", []byte(all), 0), os.MkdirAll(unit, 0o755),
		os.WriteFile(filepath.Dir(unit)+"/cgroup.subtree_control", []byte(all), 0))
	for _, name := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
		err = errors.Join(err, os.Chown(filepath.Join(unit, name), p.UID, p.UID))
	}
	return err
}

// start starts a program, in its unit where the layout has one.
func (p plan) start(cmd *exec.Cmd) error {
	if p.Layout != "delegated" {
		return cmd.Start()
	}
	dir, err := os.Open(unit)
	if err != nil {
		return err
	}
	defer dir.Close()
	// A group that hands out controllers takes no process: the program before has to
	// have taken that back, as for a service manager that starts a unit again.
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	return cmd.Start()
}

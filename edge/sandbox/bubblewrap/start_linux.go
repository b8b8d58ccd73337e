package bubblewrap

import (
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/seccomp"

	"golang.org/x/sys/unix"
)

// start makes bwrap run p up to its gate, on the group's thread. The group's
// lock is held.
func (r *run) start(p sandbox.Process) (err error) {
	l := &layout{stage: r.group.stage}
	defer l.close()
	defer func() {
		if err != nil && r.tree != nil {
			r.tree.close()
		}
	}()
	if p.Socket != nil {
		l.pass(p.Socket) // first, so descriptor 3; the caller's to close
		l.keep = 1
	}
	stdio, ours, err := r.pipes(p)
	defer closeAll(stdio)
	if err == nil {
		r.group.spawner.do(func() {
			if err = r.arrange(l, p); err == nil {
				err = r.spawn(l, p, stdio)
			}
		})
	}
	if err != nil {
		closeAll(ours)
		return err
	}
	r.stream(p, ours)
	return nil
}

// arrange fills the layout: namespaces, file tree, seccomp, gate and status.
func (r *run) arrange(l *layout, p sandbox.Process) error {
	b := r.group.backend
	b.confine(l, p)
	dir := p.Dir
	program := seccomp.Code
	var err error
	switch p.Role {
	case sandbox.RoleWorker:
		program = seccomp.Worker
		err = b.workerRoot(l, p)
	default:
		if p.Workspace != "" {
			if r.tree, err = openWorkspace(p.Workspace, p.Protected, r.group.stage); err != nil {
				return err
			}
			if err = r.group.claim(r.tree); err != nil {
				return err
			}
			if dir == "" {
				dir = workspaceInside
			}
		}
		err = b.codeRoot(l, p, r.group.limits, r.tree)
	}
	if err != nil {
		return err
	}
	l.add("--remount-ro", "/")
	if dir != "" {
		l.add("--chdir", dir)
	}
	if b.breach.noSeccomp {
		return nil
	}
	text, err := program()
	if err != nil {
		return err
	}
	fd, err := l.sealed("seccomp", text)
	l.add("--seccomp", fd)
	return err
}

// spawn starts bwrap.
func (r *run) spawn(l *layout, p sandbox.Process, stdio []*os.File) error {
	statusOurs, statusTheirs, err := os.Pipe()
	if err != nil {
		return err
	}
	l.add("--json-status-fd", l.pass(statusTheirs))
	gateTheirs, gateOurs, err := os.Pipe()
	if err != nil {
		statusOurs.Close()
		return err
	}
	l.add("--block-fd", l.pass(gateTheirs))
	// bwrap goes through a gate that has nobody behind it. It holds the other end
	// itself, until its command starts: when we die before the gate is open, it stays shut.
	held, err := unix.FcntlInt(gateOurs.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return errors.Join(os.NewSyscallError("dup", err), statusOurs.Close(), gateOurs.Close())
	}
	l.add("--sync-fd", l.pass(os.NewFile(uintptr(held), "gate")))
	r.status, r.gate = statusOurs, gateOurs
	if err = r.fork(l, p, stdio); err != nil {
		return errors.Join(err, statusOurs.Close(), gateOurs.Close())
	}
	return nil
}

func (r *run) fork(l *layout, p sandbox.Process, stdio []*os.File) error {
	b := r.group.backend
	path, err := b.bwrap()
	if err != nil {
		return err
	}
	text, err := l.argFile()
	if err != nil {
		return err
	}
	args, err := l.sealed("arguments", text)
	if err != nil {
		return err
	}
	argv := append([]string{b.title(r.group.id), "--args", args, "--"}, p.Argv...)
	attr := &os.ProcAttr{Dir: "/", Env: []string{}, Files: append(stdio, l.files...), Sys: r.attributes()}
	if b.breach.leakDescriptor {
		attr.Files = append(attr.Files, stdio[0])
	}
	if !b.breach.leakDescriptor {
		// What a library or our own parent left inheritable stays here.
		err = unix.CloseRange(firstFile, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	}
	if err == nil {
		r.monitor, err = r.group.born(path, argv, attr)
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return protocol.Errorf(protocol.CodeUnavailable,
			"the attempt has reached its limit of %d processes, so nothing more starts", r.group.limits.PIDs)
	case err != nil:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "start %s: %w; %s", path, err, remedyFor(err.Error()))
	}
	return nil
}

// born starts a process that is a member of the group's freezer from its birth.
func (g *group) born(path string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	if g.cgroup == nil {
		return os.StartProcess(path, argv, attr)
	}
	if err := g.cgroup.Enter(); err != nil {
		return nil, err
	}
	p, err := os.StartProcess(path, argv, attr)
	if lerr := g.cgroup.Leave(); lerr != nil {
		g.ended = true // freezing it would stop a thread of ours
		if err == nil {
			_ = p.Kill() // it waits at its gate
			_, err = p.Wait()
		}
		return nil, errors.Join(err, lerr)
	}
	return p, err
}

// attributes drop root, follow the thread's death, leave our terminal and enter
// the control group.
func (r *run) attributes() *syscall.SysProcAttr {
	b := r.group.backend
	a := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if !b.keepsUID {
		a.Credential = &syscall.Credential{Uid: uint32(b.cfg.UID), Gid: uint32(b.cfg.GID)}
	}
	if c := r.group.cgroup; c != nil && c.FD() >= 0 {
		a.UseCgroupFD, a.CgroupFD = true, c.FD()
	}
	return a
}

// pipes makes standard input, output and error; stdio are the inside ends.
func (r *run) pipes(p sandbox.Process) (stdio, ours []*os.File, err error) {
	uid, gid := -1, -1
	if b := r.group.backend; !b.keepsUID {
		uid, gid = b.cfg.UID, b.cfg.GID
	}
	for i := range firstFile {
		if i == 0 && p.Stdin == nil {
			null, err := os.Open(os.DevNull)
			if err != nil {
				return stdio, ours, err
			}
			stdio, ours = append(stdio, null), append(ours, nil)
			continue
		}
		our, inside, err := pipe(uid, gid, i > 0)
		if err != nil {
			return stdio, ours, fmt.Errorf("make a pipe for the sandbox: %w", err)
		}
		stdio, ours = append(stdio, inside), append(ours, our)
	}
	return stdio, ours, nil
}

// stream starts the copying of standard streams. They end with the process.
func (r *run) stream(p sandbox.Process, ours []*os.File) {
	if ours[0] != nil {
		go feed(ours[0], p.Stdin)
	}
	shared := &budget{left: r.group.limits.OutputBytes, exceed: func() {
		r.end(func(e *sandbox.Exit) { e.OutputLimit = true })
	}}
	failed := func(err error) {
		r.mu.Lock()
		if r.broken == nil {
			r.broken = err
		}
		r.mu.Unlock()
		r.end(func(*sandbox.Exit) {})
	}
	out := &outlet{from: ours[1], to: p.Stdout, budget: shared, failed: failed}
	r.errout = &outlet{from: ours[2], to: p.Stderr, budget: shared, failed: failed}
	r.streams.Go(out.copy)
	r.streams.Go(r.errout.copy)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

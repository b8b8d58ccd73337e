//go:build linux

package stack

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bivouac/edge/state"
)

// Running is one process of a stack, whoever started it.
type Running struct {
	PID  int
	Role string // server, broker, edge, supervise or worker; empty: anything else
	Line string // its command line
	// Started counts the kernel's ticks: with the number it names one process.
	Started uint64
	Age     time.Duration
	// Memory is what it wrote itself, in bytes: not the pages of its binary or of
	// files, which the kernel gives and takes. Descriptors are open ones. Both are
	// zero where nobody may look.
	Memory      int64
	Descriptors int

	parent int
	groups string // control groups
}

// Running are all processes of the stack that live: those whose command line names
// its directory, those in a control group of one of its machines, and all that
// descend from either.
func (s *Stack) Running() ([]Running, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	var scopes []string
	for _, e := range s.Edges {
		if d, err := state.Open(e.State); err == nil {
			scopes = append(scopes, d.Scope())
		}
	}
	ours := map[int]bool{}
	for more := true; more; {
		more = false
		for pid, r := range all {
			if !ours[pid] && (ours[r.parent] || strings.Contains(r.Line, s.cfg.Dir+"/") || within(r.groups, scopes)) {
				ours[pid], more = true, true
			}
		}
	}
	var out []Running
	for pid := range ours {
		out = append(out, all[pid])
	}
	return out, nil
}

func within(groups string, scopes []string) bool {
	for _, scope := range scopes {
		if strings.Contains(groups, "/"+scope) {
			return true
		}
	}
	return false
}

// Kill ends this process and no other that has its number by now.
func (r Running) Kill() error {
	p, err := os.FindProcess(r.PID)
	if err != nil {
		return err
	}
	defer p.Release()
	now, ok := look(r.PID)
	if !ok || now.Started != r.Started {
		return os.ErrProcessDone
	}
	return p.Signal(syscall.SIGKILL)
}

func processes() (map[int]Running, error) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	out := map[int]Running{}
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if r, ok := look(pid); ok {
			out[pid] = r
		}
	}
	return out, nil
}

// look says what a process is; false: it is gone, or dead.
func look(pid int) (Running, bool) {
	read := func(name string) []byte {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name)) // it may go at any time
		return b
	}
	stat := read("stat")
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return Running{}, false
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return Running{}, false
	}
	r := Running{PID: pid, Line: strings.TrimSpace(string(bytes.ReplaceAll(read("cmdline"), []byte{0}, []byte{' '}))), groups: string(read("cgroup"))}
	r.parent, _ = strconv.Atoi(fields[1])
	r.Started, _ = strconv.ParseUint(fields[19], 10, 64)
	r.Role = role(string(stat[open+1:end]), r.Line)
	return r, true
}

func role(program, line string) string {
	switch program {
	case "bivouac-server", "bivouac-broker":
		return strings.TrimPrefix(program, "bivouac-")
	case "bivouac-worker":
		return "worker"
	case "bivouac-edge":
		for _, role := range []string{"supervise", "run"} {
			if strings.Contains(line, "bivouac-edge "+role+" ") {
				return strings.Replace(role, "run", "edge", 1)
			}
		}
	}
	return ""
}

// clockTick is the kernel's unit of start times.
const clockTick = 10 * time.Millisecond

// Measured is the process with its age, memory and descriptors; false: it is gone.
func (r Running) Measured() (Running, bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.PID))
	if err != nil {
		return r, false
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, _ := strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
			r.Memory = n << 10
		}
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.PID))
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return r, false
	}
	r.Descriptors = len(open)
	up, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return r, false
	}
	seconds, err := strconv.ParseFloat(strings.Fields(string(up))[0], 64)
	r.Age = time.Duration(seconds*float64(time.Second)) - time.Duration(r.Started)*clockTick
	now, ok := look(r.PID)
	return r, err == nil && ok && now.Started == r.Started
}

// Left is what a stack's machines hold beyond their daemons: processes, control
// groups, mounts. On machines at rest there is none.
func (s *Stack) Left() (left []string, err error) {
	all, err := s.Running()
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if r.Role != "server" && r.Role != "broker" && r.Role != "edge" {
			left = append(left, fmt.Sprintf("process %d: %s", r.PID, r.Line))
		}
	}
	for _, e := range s.Edges {
		d, err := state.Open(e.State)
		if err != nil {
			return nil, err
		}
		for _, pattern := range groupPatterns {
			groups, err := filepath.Glob(filepath.Join(pattern, d.Scope(), "*"))
			if err != nil {
				return nil, err
			}
			for _, g := range groups {
				if info, err := os.Stat(g); err == nil && info.IsDir() {
					left = append(left, "control group "+g)
				}
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, s.cfg.Dir+"/") {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	return left, err
}

package sandbox

import (
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"bivouac/edge/protocol"
)

// groupID is what is safe as a file name in every place where a backend keeps
// something by id.
var groupID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// ValidateID refuses an id that is not safe as a file name.
func ValidateID(id string) error {
	if !groupID.MatchString(id) {
		return invalid("the sandbox id %q is not safe as a file name", id)
	}
	return nil
}

// Validate refuses limits that are absent.
func (l Limits) Validate() error {
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"memory", l.MemoryBytes}, {"cpu", l.CPUMillis}, {"pids", int64(l.PIDs)},
		{"disk", l.DiskBytes}, {"timeout", int64(l.Timeout)}, {"output", l.OutputBytes},
	} {
		if f.n <= 0 {
			return invalid("the sandbox limit %q is %d; every limit must be positive", f.name, f.n)
		}
	}
	return nil
}

// Validate refuses a process that its role must not have (INV-12).
func (p Process) Validate() error {
	if len(p.Argv) == 0 || p.Argv[0] == "" {
		return invalid("a sandboxed process needs a command")
	}
	for _, s := range append(append([]string{p.Dir}, p.Argv...), p.Env...) {
		if strings.ContainsRune(s, 0) {
			return invalid("a sandboxed process has a NUL byte in its command, folder or environment")
		}
	}
	for _, kv := range p.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" {
			return invalid("an environment entry of a sandboxed process is not NAME=value")
		}
	}
	if p.Dir != "" && !path.IsAbs(p.Dir) {
		return invalid("the folder %q of a sandboxed process is not absolute", p.Dir)
	}
	if err := p.validateRole(); err != nil {
		return err
	}
	for _, b := range p.Binds {
		if err := b.validate(); err != nil {
			return err
		}
	}
	for _, s := range p.Protected {
		if !filepath.IsLocal(s) || path.Clean(s) == "." {
			return invalid("the protected path %q is not inside the workspace", s)
		}
	}
	return nil
}

func (p Process) validateRole() error {
	switch p.Role {
	case RoleWorker:
		if p.Socket == nil {
			return invalid("a worker needs its socket")
		}
		if p.Workspace != "" || len(p.Protected) > 0 {
			return invalid("a worker gets no workspace")
		}
		for _, b := range p.Binds {
			if b.Writable {
				return invalid("a worker gets no writable bind; %q is one", b.Inside)
			}
		}
	case RoleCode:
		if p.Socket != nil {
			return invalid("sandboxed code gets no socket")
		}
		if len(p.Protected) > 0 && p.Workspace == "" {
			return invalid("protected paths need a workspace")
		}
	default:
		return invalid("a sandboxed process needs a role")
	}
	// A wrong path here would hand out, and change the owner of, the machine.
	if w := p.Workspace; w != "" && (!filepath.IsAbs(w) || filepath.Clean(w) != w || strings.Count(w, "/") < 2) {
		return invalid("the workspace %q is not a clean absolute path below a folder of its own", w)
	}
	return nil
}

// reserved are places that a backend fills itself.
var reserved = []string{"/proc", "/dev", "/sys", "/tmp", "/etc", "/workspace"}

func (b Bind) validate() error {
	if !filepath.IsAbs(b.Host) || filepath.Clean(b.Host) != b.Host || b.Host == "/" {
		return invalid("the host path %q of a bind is not a clean absolute path below /", b.Host)
	}
	if !path.IsAbs(b.Inside) || path.Clean(b.Inside) != b.Inside || b.Inside == "/" {
		return invalid("the inside path %q of a bind is not a clean absolute path below /", b.Inside)
	}
	for _, r := range reserved {
		if b.Inside == r || strings.HasPrefix(b.Inside, r+"/") {
			return invalid("a bind may not cover %s, and %q does", r, b.Inside)
		}
	}
	return nil
}

func invalid(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidArgument, format, args...)
}

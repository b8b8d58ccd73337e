package sandboxtest

import (
	"bivouac/edge/sandbox"
)

// codeAttacks are the ways out of sandbox B and into the worker's.
func codeAttacks(c Config) []attack {
	all := append(fileAttacks(), processAttacks()...)
	all = append(all, kernelAttacks()...)
	all = append(all, networkAttacks()...)
	if c.Setuid != "" {
		// The program gives root to whoever runs it outside.
		all = append(all, attack{name: "set-user-id program", way: "setuid", bare: true,
			args: func(s *scene) []string { return []string{c.Setuid} },
			prepare: func(_ *scene, p *sandbox.Process) {
				p.Binds = append(p.Binds, sandbox.Bind{Host: c.Setuid, Inside: "/given/setuid"})
				p.Argv[len(p.Argv)-1] = "/given/setuid"
			}})
	}
	return all
}

func fileAttacks() []attack {
	outside := func(parts ...string) func(*scene) []string {
		return func(s *scene) []string {
			return []string{s.path(parts...), "/seen/" + parts[len(parts)-1]}
		}
	}
	return []attack{
		{name: "host file", way: "read", args: outside("outside", "secret"), wrong: bind("/seen", false, "outside")},
		{name: "workspace of another attempt", way: "read", args: outside("other", "workspace", "secret"), wrong: bind("/seen", false, "other", "workspace")},
		{name: "state folder", way: "read", args: outside("state", "journal"), wrong: bind("/seen", false, "state")},
		{name: "link out of the workspace", way: "read", args: words("/workspace/link", "/workspace/seen"), wrong: bind("/seen", false, "outside")},
		{name: "root's file in a bind", way: "read", args: words("/given/secret"), prepare: bind("/given", false, "rootonly"),
			holes: []Hole{HoleRoot}, root: true},
		{name: "password file", way: "read", args: words("/etc/shadow", "/seen/shadow"), root: true, holes: []Hole{HoleRoot},
			wrong: func(_ *scene, p *sandbox.Process) {
				p.Binds = append(p.Binds, sandbox.Bind{Host: "/etc", Inside: "/seen"})
			}},
		{name: "read-only bind", way: "write", args: words("/given/file"), prepare: bind("/given", false, "given"), wrong: bind("/given", true, "given")},
		{name: "read-only bind through a link", way: "write", args: words("/workspace/given"), prepare: bind("/given", false, "given"), wrong: bind("/given", true, "given")},
		{name: "protected file", way: "write", args: words("/workspace/.git/config", "/workspace/.git"), holes: []Hole{HoleProtected}},
		{name: "protected file below folders", way: "write", args: words("/workspace/a/b/policy"), holes: []Hole{HoleProtected}},
		{name: "protected file that is absent", way: "write", args: words("/workspace/absent/made", "/workspace/absent"), holes: []Hole{HoleProtected}},
		{name: "protected file by its parents", way: "swap", args: words("/workspace/a/b/policy"), holes: []Hole{HoleParents}},
		{name: "environment", way: "environment", args: words("PATH"), holes: []Hole{HoleEnvironment}},
		{name: "descriptors", way: "descriptors", args: words("3"), holes: []Hole{HoleDescriptor}},
		{name: "devices", way: "devices", holes: []Hole{HoleDevices}},
	}
}

func processAttacks() []attack {
	return []attack{
		{name: "folders of /proc", way: "procfs", args: processes, bare: true, also: [][]Hole{{HoleSystemCalls}}},
		{name: "ptrace", way: "ptrace", args: processes, bare: true, also: [][]Hole{{HoleSystemCalls}, {HoleProcesses}}},
		{name: "memory of a process", way: "vmread", args: processes, bare: true, also: [][]Hole{{HoleSystemCalls}, {HoleProcesses}}},
		{name: "descriptor of a process", way: "stealfd", args: processes, bare: true, also: [][]Hole{{HoleSystemCalls}, {HoleProcesses}}},
		{name: "signal", way: "signal", args: processes, holes: []Hole{HoleProcesses}},
	}
}

func kernelAttacks() []attack {
	inOwnNamespace := []Hole{HoleSystemCalls, HoleCapabilities, HoleUserNamespace}
	return []attack{
		{name: "forbidden calls", way: "calls", holes: []Hole{HoleSystemCalls}},
		{name: "32-bit calls", way: compat32, holes: []Hole{HoleSystemCalls}},
		{name: "clone3", way: "clone3", holes: []Hole{HoleSystemCalls}},
		{name: "user namespace", way: "userns", holes: []Hole{HoleSystemCalls, HoleUserNamespace},
			also: [][]Hole{{HoleSystemCalls}, {HoleUserNamespace}}},
		{name: "user namespace by clone", way: "clonens", holes: []Hole{HoleSystemCalls, HoleUserNamespace},
			also: [][]Hole{{HoleSystemCalls}, {HoleUserNamespace}}},
		{name: "mount", way: "mount", holes: inOwnNamespace, also: [][]Hole{{HoleSystemCalls}, {HoleCapabilities}}},
		{name: "chroot", way: "chroot", holes: inOwnNamespace, also: [][]Hole{{HoleSystemCalls}, {HoleCapabilities}}},
	}
}

func networkAttacks() []attack {
	return []attack{
		{name: "abstract socket", way: "unix", args: func(s *scene) []string { return []string{s.abstract} }, holes: []Hole{HoleNetwork}},
		{name: "pathname socket", way: "unix", wrong: bind("/seen", false, "outside"),
			args: func(s *scene) []string { return []string{s.path("outside", "socket"), "/seen/socket"} }},
		{name: "loopback of the host", way: "tcp", args: func(s *scene) []string { return []string{s.port} }, holes: []Hole{HoleNetwork}},
		{name: "socket families", way: "families", holes: []Hole{HoleSystemCalls}},
		{name: "raw socket", way: "raw", holes: []Hole{HoleCapabilities, HoleUserNamespace},
			also: [][]Hole{{HoleSystemCalls}}},
	}
}

// workerAttacks are the ways out of sandbox A.
func workerAttacks() []attack {
	all := []attack{
		{name: "any file", way: "list", args: func(s *scene) []string { return []string{s.config.Program} }, wrong: bind("/seen", false, "workspace")},
		{name: "workspace", way: "read", args: words("/workspace/free", "/seen/free"), wrong: bind("/seen", false, "workspace")},
		{name: "execute anything", way: "exec", holes: []Hole{HoleSystemCalls}},
		{name: "execute when locked", way: "execlocked", other: "self"},
		{name: "make a process when locked", way: "forklocked", other: "fork"},
		{name: "socket calls", way: "sockets", holes: []Hole{HoleSystemCalls}},
		{name: "forbidden calls", way: "calls", holes: []Hole{HoleSystemCalls}},
		{name: "32-bit calls", way: compat32, holes: []Hole{HoleSystemCalls}},
		{name: "signal", way: "signal", args: processes, holes: []Hole{HoleProcesses}},
		{name: "environment", way: "environment", args: words("PATH"), holes: []Hole{HoleEnvironment}},
		{name: "descriptors", way: "descriptors", args: words("4"), holes: []Hole{HoleDescriptor}},
	}
	for i := range all {
		all[i].role = sandbox.RoleWorker
	}
	return all
}

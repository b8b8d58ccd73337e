package seccomp

import (
	"encoding/binary"
	"runtime"
	"slices"

	"bivouac/edge/protocol"

	lib "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
)

// Offsets in struct seccomp_data.
const (
	offsetNumber = 0
	offsetArch   = 4
)

// x32Bit marks the x32 ABI, which shares x86-64's architecture number.
const x32Bit = 0x40000000

// Worker is the program of sandbox A as bubblewrap loads it. It lets one
// execution pass, the worker's own: nothing else in A can be executed, and
// LockWorker denies the rest.
func Worker() ([]byte, error) {
	return program([]group{
		{names: escapes},
		{names: sockets},
		{names: []string{"execveat", "memfd_create"}},
	})
}

// Code is the program of sandbox B.
func Code() ([]byte, error) {
	return program([]group{
		{names: escapes},
		{errno: errnoNoFamily, when: families()},
	})
}

// group denies calls: by name, or by name and arguments.
type group struct {
	names []string
	when  []lib.NameWithConditions
	errno uint32 // EPERM when zero
}

func families() []lib.NameWithConditions {
	var none []lib.Condition
	for _, f := range []uint64{familyUnix, familyInet, familyInet6, familyNetlink} {
		none = append(none, lib.Condition{Argument: 0, Operation: lib.NotEqual, Value: f})
	}
	// The kernel reads 32 bits of the family; one with other bits set is equal to
	// none above and so denied.
	return []lib.NameWithConditions{
		{Name: "socket", Conditions: none},
		{Name: "socket", Conditions: []lib.Condition{
			{Argument: 0, Operation: lib.Equal, Value: familyNetlink},
			{Argument: 2, Operation: lib.NotEqual, Value: netlinkRoute},
		}},
		{Name: "socketpair", Conditions: []lib.Condition{
			{Argument: 0, Operation: lib.NotEqual, Value: familyUnix},
		}},
	}
}

// program assembles groups behind a gate for ABI and age, as the bytes that
// bubblewrap and the kernel read.
func program(groups []group) ([]byte, error) {
	insts, err := assemble(groups)
	if err != nil {
		return nil, err
	}
	raw, err := bpf.Assemble(insts)
	if err != nil {
		return nil, err
	}
	var out []byte
	for _, r := range raw {
		out = binary.NativeEndian.AppendUint16(out, r.Op)
		out = append(out, r.Jt, r.Jf)
		out = binary.NativeEndian.AppendUint32(out, r.K)
	}
	return out, nil
}

func assemble(groups []group) ([]bpf.Instruction, error) {
	ours, err := table()
	if err != nil {
		return nil, err
	}
	p := policy(ours, groups)
	body, err := p.Assemble()
	if err != nil {
		return nil, err
	}
	deny := bpf.RetConstant{Val: uint32(lib.ActionErrno) | errnoNoCall}
	// The library lets a foreign architecture pass to the default action, which
	// is "allow" here: int 0x80 would go around the whole policy.
	gate := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(ours.ID), SkipTrue: 1},
		bpf.RetConstant{Val: uint32(lib.ActionKillProcess)},
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: lastKnownCall, SkipTrue: 1},
		deny,
	}
	return append(gate, body...), nil
}

// table names the calls of this machine. Only architectures whose clone(2)
// takes its flags first are known here.
func table() (*arch.Info, error) {
	switch runtime.GOARCH {
	case "amd64", "arm64":
		return arch.GetInfo("")
	}
	return nil, protocol.Errorf(protocol.CodeIncompatible,
		"no system-call policy for %s; run the edge on amd64 or arm64", runtime.GOARCH)
}

func policy(ours *arch.Info, groups []group) lib.Policy {
	p := lib.Policy{DefaultAction: lib.ActionAllow}
	for _, g := range groups {
		errno := g.errno
		if errno == 0 {
			errno = errnoPermission
		}
		sg := lib.SyscallGroup{Action: lib.ActionErrno | lib.Action(errno), NamesWithCondtions: g.when}
		for _, n := range g.names {
			// Old calls do not exist on every architecture.
			if _, ok := ours.SyscallNames[n]; ok && !slices.Contains(sg.Names, n) {
				sg.Names = append(sg.Names, n)
			}
		}
		p.Syscalls = append(p.Syscalls, sg)
	}
	// clone3 hides its flags behind a pointer; libraries fall back to clone.
	p.Syscalls = append(p.Syscalls,
		lib.SyscallGroup{Action: lib.ActionErrno | errnoNoCall, Names: []string{"clone3"}},
		lib.SyscallGroup{Action: lib.ActionErrno | errnoPermission, NamesWithCondtions: []lib.NameWithConditions{
			{Name: "clone", Conditions: []lib.Condition{{Argument: 0, Operation: lib.BitsSet, Value: namespaceFlags}}},
		}})
	return p
}

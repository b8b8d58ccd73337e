package seccomp

import (
	"encoding/binary"
	"runtime"

	"bivouac/edge/protocol"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Worker is the program of sandbox A in the form that bubblewrap loads.
func Worker() ([]byte, error) { return program(worker()) }

// Code is the program of sandbox B in the form that bubblewrap loads.
func Code() ([]byte, error) { return program(code()) }

func program(rules []rule) ([]byte, error) {
	insts, err := assemble(rules)
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

// Offsets in struct seccomp_data. Both architectures are little-endian, so the
// low half of an argument comes first.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

// table names the calls of this machine. Only architectures are known here whose
// clone(2) takes its flags first.
func table() (*arch.Info, error) {
	switch runtime.GOARCH {
	case "amd64", "arm64":
		return arch.GetInfo("")
	}
	return nil, protocol.Errorf(protocol.CodeIncompatible,
		"no system-call policy for %s; run the edge on amd64 or arm64", runtime.GOARCH)
}

// assemble puts the rules behind a gate for ABI and age. Each rule loads what it
// looks at, so none depends on those before it.
func assemble(rules []rule) ([]bpf.Instruction, error) {
	ours, err := table()
	if err != nil {
		return nil, err
	}
	insts := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(ours.ID), SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		// x32 calls have a high bit and are "newer" too.
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: lastKnownCall, SkipTrue: 1},
		refuse(errnoNoCall),
	}
	for _, r := range rules {
		if nr, ok := ours.SyscallNames[r.call]; ok { // old calls are not everywhere
			insts = append(insts, r.assemble(uint32(nr))...)
		}
	}
	return append(insts, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}), nil
}

func refuse(errno uint32) bpf.Instruction {
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | errno}
}

// assemble is: not this call, or a test that fails, skips to the next rule.
func (r rule) assemble(nr uint32) []bpf.Instruction {
	body := []bpf.Instruction{refuse(r.errno)}
	for i := len(r.when) - 1; i >= 0; i-- {
		body = append(r.when[i].assemble(uint8(len(body))), body...)
	}
	head := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: uint8(len(body))},
	}
	return append(head, body...)
}

// assemble falls through when the test holds and skips rest when not.
func (t test) assemble(rest uint8) []bpf.Instruction {
	insts := []bpf.Instruction{bpf.LoadAbsolute{Off: uint32(offsetArgs + 8*t.arg), Size: 4}}
	switch t.kind {
	case anyBit:
		return append(insts, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: t.bits, SkipFalse: rest})
	case noBit:
		return append(insts, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: t.bits, SkipTrue: rest})
	}
	for i, v := range t.set {
		left := uint8(len(t.set) - 1 - i) // comparisons after this one
		jump := bpf.JumpIf{Cond: bpf.JumpEqual, Val: v}
		switch {
		case t.kind == notIn:
			jump.SkipTrue = left + rest
		case left > 0:
			jump.SkipTrue = left
		default:
			jump.SkipFalse = rest
		}
		insts = append(insts, jump)
	}
	return insts
}

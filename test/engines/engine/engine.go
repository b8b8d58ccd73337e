//go:build linux

// Package engine finds the real servers against which adapters are tested: what is
// on PATH first, then what was built here before. It owns the folder of built
// programs in the user's cache and knows nothing of what the servers do.
//
// It guarantees that a built program is the release that its module file names, by
// this toolchain, and that it is whole: it appears under its name when it is ready,
// also when two build at once. It refuses to build within a test: that takes minutes,
// and is asked for with `make engines`.
package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"bivouac/test/process"
)

// Engine is one kind of server.
type Engine struct {
	// Name of the program, on PATH and in ENGINES.
	Name string
	// Package of the program in the module test/engines/<Name>; empty: it runs
	// where it is on PATH alone.
	Package string
	// Env that the program needs beside what its caller gives it.
	Env []string
}

// Engines that adapters are tested against.
var (
	// Vault in its last release under MPL-2.0 that builds as a Go tool. A driver
	// that it links embeds an old certificate with a negative serial number, which
	// today's Go refuses to parse and the program then does not start.
	Vault = Engine{Name: "vault", Package: "github.com/hashicorp/vault", Env: []string{"GODEBUG=x509negativeserial=1"}}
	// OpenBao has no module that builds as a Go tool: its own replaces parts of
	// itself with folders.
	OpenBao = Engine{Name: "bao"}
	// Consul in a release under MPL-2.0 that builds as a Go tool.
	Consul = Engine{Name: "consul", Package: "github.com/hashicorp/consul"}
	// Nomad is never built here: its licence is no open-source one.
	Nomad = Engine{Name: "nomad"}
)

// Vaults are the engines that hold grants and credentials.
func Vaults() []Engine { return []Engine{Vault, OpenBao} }

// All engines, in the order in which they are run.
func All() []Engine { return append(Vaults(), Consul, Nomad) }

// Program is an engine's program on this machine.
type Program struct {
	Engine
	Path string
}

// ErrAbsent: the engine is not on this machine.
var ErrAbsent = errors.New("not on this machine")

// Find looks on PATH, then among what was built. The error says what brings it.
func (e Engine) Find(ctx context.Context) (Program, error) {
	if path, err := exec.LookPath(e.Name); err == nil {
		return e.program(path)
	}
	if e.Package == "" {
		return Program{}, fmt.Errorf("%s is %w: put it on PATH", e.Name, ErrAbsent)
	}
	b, err := e.build(ctx)
	if err != nil {
		return Program{}, err
	}
	if !b.ready() {
		return Program{}, fmt.Errorf("%s is %w: make engines ENGINES=%s builds it, once", e.Name, ErrAbsent, e.Name)
	}
	return e.program(b.path)
}

func (e Engine) program(path string) (Program, error) {
	path, err := filepath.Abs(path)
	return Program{Engine: e, Path: path}, err
}

// Version in the first line of the program's own words.
func (p Program) Version(ctx context.Context) (string, error) {
	out, err := process.Output(ctx, p.Command("version"))
	first, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	return first, err
}

// Command of the program. Its environment is what the engine needs and nothing of
// this process: an address or a token of the developer's own server stays out.
func (p Program) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(p.Path, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, p.Env...)
	return cmd
}

// AskedVariable names the engines without which a run of tests is a failure,
// parted by spaces or commas. Unset, each is run where it is found.
const AskedVariable = "BIVOUAC_ENGINES"

// Ask is what a run of tests wants of an engine.
type Ask int

// The zero value runs an engine where it is found.
const (
	WhereFound Ask = iota
	Must
	Never
)

// Asked reads what this run wants of e.
func (e Engine) Asked() Ask {
	names, set := os.LookupEnv(AskedVariable)
	switch {
	case !set:
		return WhereFound
	case slices.Contains(Names(names), e.Name):
		return Must
	default:
		return Never
	}
}

// Names splits a list of engines.
func Names(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// Named finds engines by name, in the order of All.
func Named(names []string) ([]Engine, error) {
	var found []Engine
	for _, e := range All() {
		if slices.Contains(names, e.Name) {
			found = append(found, e)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(found, func(e Engine) bool { return e.Name == name }) {
			return nil, fmt.Errorf("there is no engine %q: ENGINES takes %s", name, strings.Join(allNames(), ", "))
		}
	}
	return found, nil
}

func allNames() (names []string) {
	for _, e := range All() {
		names = append(names, e.Name)
	}
	return names
}

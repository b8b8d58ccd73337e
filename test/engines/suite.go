//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"bivouac/test/engines/engine"
)

const module = "bivouac/"

// suite is the tests of one package that speak of an engine.
type suite struct {
	pkg   string
	tests string // as go test -run has it
}

// embedded is the Authority port's own suite on what is built in: it needs no
// engine, and is what the engines are compared with.
var embedded = suite{module + "server/broker/keyring", "^TestAuthority$"}

// fixtures start engines. Whoever imports one is tested against engines, and so are
// the fixtures themselves.
var fixtures = []string{module + "test/engines/vaulttest", module + "test/engines/consulserver", module + "test/engines/nomadserver"}

// suites finds the packages by what their tests import, and in them the tests by what
// they call, so that none is forgotten.
func suites(ctx context.Context) ([]suite, error) {
	list := exec.CommandContext(ctx, "go", "list", "-json=ImportPath,Dir,TestImports,XTestImports,TestGoFiles,XTestGoFiles", "./...")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	found := []suite{embedded}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir           string
			TestImports, XTestImports []string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); err == io.EOF {
			return found, nil
		} else if err != nil {
			return nil, err
		}
		uses := func(imp string) bool { return slices.Contains(fixtures, imp) }
		if !slices.ContainsFunc(append(p.TestImports, p.XTestImports...), uses) {
			continue
		}
		tests, err := testsOnEngines(p.Dir, append(p.TestGoFiles, p.XTestGoFiles...))
		if err != nil {
			return nil, err
		}
		if len(tests) > 0 {
			found = append(found, suite{p.ImportPath, "^(" + strings.Join(tests, "|") + ")$"})
		}
	}
}

func (s suite) name() string { return strings.TrimPrefix(s.pkg, module) }

// run tests the package on the engines that are here, prints what came of it, and
// reports whether all went well.
func (s suite) run(ctx context.Context, here []string) (bool, error) {
	test := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-timeout=30m", "-run", s.tests, s.pkg)
	test.Env = append(os.Environ(), engine.AskedVariable+"="+strings.Join(here, ","))
	test.Stderr = os.Stderr
	// What go test started ends with it, and servers with the test that started them.
	test.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	test.Cancel = func() error { return syscall.Kill(-test.Process.Pid, syscall.SIGKILL) }
	out, err := test.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := test.Start(); err != nil {
		return false, err
	}
	o, err := read(out)
	if err != nil {
		return false, err
	}
	err = test.Wait()
	if ctx.Err() != nil {
		return false, fmt.Errorf("in %s: %w", s.name(), context.Cause(ctx))
	}
	o.print(os.Stdout, s.name(), here)
	if err != nil {
		if _, ended := err.(*exec.ExitError); !ended {
			return false, err
		}
		return false, nil
	}
	return true, nil
}

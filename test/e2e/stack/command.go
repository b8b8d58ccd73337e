//go:build linux

package stack

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"

	"bivouac/test/process"
)

// command is a binary of the product with an environment that holds nothing but
// what a process needs.
func (s *Stack) command(place Place, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.cfg.Bin, name), args...)
	cmd.Env = []string{
		"PATH=" + s.cfg.Bin + ":" + os.Getenv("PATH"), "HOME=" + s.Home, "TMPDIR=" + os.TempDir(),
		"BIVOUAC_CONFIG=" + s.Login, "LANG=C.UTF-8",
	}
	place.Into(cmd)
	return cmd
}

// process is a part of the stack that runs until it is ended.
func (s *Stack) process(name string, place Place, binary string, args ...string) *Process {
	return process.New(name, s.Path("logs", name+".log"), func() *exec.Cmd { return s.command(place, binary, args...) })
}

// Run runs a binary to its end where the control plane runs and returns what it
// printed.
func (s *Stack) Run(ctx context.Context, name string, args ...string) (string, error) {
	return s.run(ctx, s.cfg.Control, "", name, args...)
}

// CLI runs one command of the person in a directory.
func (s *Stack) CLI(ctx context.Context, dir string, args ...string) (string, error) {
	return s.run(ctx, s.cfg.Control, dir, "bivouac", args...)
}

// JSON decodes the one document that a command of the person prints.
func (s *Stack) JSON(ctx context.Context, into any, args ...string) error {
	out, err := s.CLI(ctx, s.Home, append([]string{"--json"}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), into)
}

func (s *Stack) run(ctx context.Context, place Place, dir, name string, args ...string) (string, error) {
	cmd := s.command(place, name, args...)
	cmd.Dir = dir
	return process.Output(ctx, cmd)
}

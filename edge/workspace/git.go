package workspace

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"bivouac/edge/protocol"
)

// git is one disarmed call. What a folder's own configuration, attributes or
// hooks ask for cannot run: the environment is empty, the command line overrides
// every setting that names a program, and no transport is allowed (a file of the
// folder may say protocol.file.allow=always, GIT_ALLOW_PROTOCOL outranks it).
type git struct {
	dir      string // working directory
	gitDir   string // empty: found from dir
	workTree string
	input    io.Reader
	output   io.Writer // nil: returned
	extra    []string  // more environment
}

// disarmed overrides the settings that make git start a program, for the
// commands that this package uses: ls-files, rev-parse, check-ignore, init,
// fast-import, diff-tree, apply.
var disarmed = []string{
	"--no-pager", "--no-replace-objects", "--no-optional-locks",
	"-c", "core.fsmonitor=false",
	"-c", "core.hooksPath=/dev/null",
	"-c", "core.attributesFile=/dev/null",
	"-c", "core.excludesFile=/dev/null",
	"-c", "core.sshCommand=false",
	"-c", "core.gitProxy=false",
	"-c", "core.pager=cat",
	"-c", "core.askPass=false",
	"-c", "core.editor=false",
	"-c", "core.untrackedCache=false",
	"-c", "core.protectHFS=true",
	"-c", "core.protectNTFS=true",
	"-c", "credential.helper=",
	"-c", "diff.external=",
	"-c", "protocol.allow=never",
	"-c", "submodule.recurse=false",
	"-c", "gc.auto=0",
	"-c", "maintenance.auto=false",
	// The owner of the folder need not be the caller: nothing of it is obeyed.
	"-c", "safe.directory=*",
	// A folder that looks like a bare repository is files, not a repository.
	"-c", "safe.bareRepository=explicit",
}

var disarmedEnv = []string{
	"HOME=/nonexistent",
	"LC_ALL=C",
	"GIT_CONFIG_NOSYSTEM=1",
	"GIT_CONFIG_GLOBAL=/dev/null",
	"GIT_CONFIG_SYSTEM=/dev/null",
	"GIT_ATTR_NOSYSTEM=1",
	"GIT_TERMINAL_PROMPT=0",
	"GIT_ALLOW_PROTOCOL=none",
	"GIT_NO_LAZY_FETCH=1",
	"GIT_SSH_COMMAND=false",
	"GIT_ASKPASS=false",
	"GIT_OPTIONAL_LOCKS=0",
}

// run starts the real git and returns what it wrote, or gitError.
func (g git) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append(disarmed[:len(disarmed):len(disarmed)], args...)...)
	cmd.Dir = g.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, disarmedEnv...)
	if g.gitDir != "" {
		cmd.Env = append(cmd.Env, "GIT_DIR="+g.gitDir)
	}
	if g.workTree != "" {
		cmd.Env = append(cmd.Env, "GIT_WORK_TREE="+g.workTree)
	}
	cmd.Env = append(cmd.Env, g.extra...)
	cmd.WaitDelay = 2 * time.Second // nothing is left holding a pipe
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = g.input, &stdout, &clipped{max: 16 << 10, buf: &stderr}
	if g.output != nil {
		cmd.Stdout = g.output
	}
	err := cmd.Run()
	switch {
	case err == nil:
		return stdout.Bytes(), nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "git is not installed: install it (Debian: apt install git)")
	}
	return nil, &gitError{command: args[0], stderr: strings.TrimSpace(stderr.String()), err: err}
}

// gitError is a call of git that failed, with what it said.
type gitError struct {
	command string
	stderr  string
	err     error
}

func (e *gitError) Error() string { return "git " + e.command + ": " + e.err.Error() + ": " + e.stderr }
func (e *gitError) Unwrap() error { return e.err }

// exitCode of a failed git; -1 when it did not end by itself.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// clipped keeps the first bytes and swallows the rest.
type clipped struct {
	max int
	buf *bytes.Buffer
}

func (c *clipped) Write(p []byte) (int, error) {
	if room := c.max - c.buf.Len(); room > 0 {
		c.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

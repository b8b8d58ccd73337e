package edge

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
)

// Needs are the programs that turns in sandboxes need beside the sandbox itself.
type Needs struct {
	// Worker is the bivouac-worker binary.
	Worker string
	// LookFunc finds a program; nil: exec.LookPath.
	LookFunc func(name string) (string, error)
}

// WorkerMissing says what is wrong with the worker's binary, and what mends it.
func (n Needs) WorkerMissing() string {
	info, err := os.Stat(n.Worker)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("bivouac-worker, which runs turns, is not at %s: copy it there, beside bivouac-edge, or name it with `bivouac-edge run --worker PATH`", n.Worker)
	case err != nil:
		return fmt.Sprintf("bivouac-worker, which runs turns, cannot be seen (%v): copy it beside bivouac-edge, or name it with `bivouac-edge run --worker PATH`", err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return fmt.Sprintf("%s, which runs turns, is no program: `chmod +x %s`", n.Worker, n.Worker)
	}
	return ""
}

// GitMissing is the same of git.
func (n Needs) GitMissing() string {
	look := n.LookFunc
	if look == nil {
		look = exec.LookPath
	}
	if _, err := look("git"); err != nil {
		return "git, which stages files and makes patches, is not found: `sudo apt-get install git`"
	}
	return ""
}

// Missing is the first thing that is missing; empty: nothing is.
func (n Needs) Missing() string {
	if why := n.WorkerMissing(); why != "" {
		return why
	}
	return n.GitMissing()
}

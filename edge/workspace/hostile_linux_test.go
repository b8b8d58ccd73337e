package workspace

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tripwire is an executable that leaves a mark when it runs.
type tripwire struct{ script, mark string }

func newTripwire(t *testing.T) tripwire {
	t.Helper()
	dir := t.TempDir()
	w := tripwire{script: filepath.Join(dir, "trip"), mark: filepath.Join(dir, "executed")}
	must(t, os.WriteFile(w.script, []byte("#!/bin/sh\n: >"+w.mark+"\nexit 1\n"), 0o755))
	return w
}

// fired reports and resets.
func (w tripwire) fired() bool { return os.Remove(w.mark) == nil }

// hostile is one place at which git would execute what a folder asks for.
type hostile struct {
	config func(w tripwire) string // appended to .git/config
	files  map[string]string       // written into the folder
	plant  func(t *testing.T, dir string, w tripwire)
	// provoke runs plain git so that the tripwire fires: the positive twin.
	provoke func(t *testing.T, dir string)
}

func section(format string) func(tripwire) string {
	return func(w tripwire) string { return strings.ReplaceAll(format, "TRIP", w.script) }
}

func do(stdin string, args ...string) func(*testing.T, string) {
	return func(t *testing.T, dir string) { tryGit(t, dir, stdin, args...) }
}

var hostiles = map[string]hostile{
	"core.fsmonitor":    {config: section("[core]\n\tfsmonitor = TRIP\n"), provoke: do("", "status")},
	"include.path":      {config: section("[include]\n\tpath = ../evil.inc\n"), plant: plantInclude, provoke: do("", "status")},
	"core.hooksPath":    {config: section("[core]\n\thooksPath = hooked\n"), plant: plantHooks("hooked"), provoke: do("", "add", "-A")},
	"hooks":             {plant: plantHooks(".git/hooks"), provoke: do("", "add", "-A")},
	"filter.clean":      {config: section("[filter \"evil\"]\n\tclean = TRIP\n"), files: attributes("* filter=evil"), provoke: do("", "add", "-A")},
	"filter.smudge":     {config: section("[filter \"evil\"]\n\tsmudge = TRIP\n"), files: attributes("* filter=evil"), provoke: do("", "checkout", "--", "a.txt")},
	"filter.process":    {config: section("[filter \"evil\"]\n\tprocess = TRIP\n"), files: attributes("* filter=evil"), provoke: do("", "add", "-A")},
	"attribute macro":   {config: section("[filter \"evil\"]\n\tclean = TRIP\n"), files: attributes("[attr]plain filter=evil diff=evil\n* plain"), provoke: do("", "add", "-A")},
	"core.attributes":   {config: section("[filter \"evil\"]\n\tclean = TRIP\n[core]\n\tattributesFile = evil.attributes\n"), files: map[string]string{"evil.attributes": "* filter=evil\n"}, provoke: do("", "add", "-A")},
	"info/attributes":   {config: section("[filter \"evil\"]\n\tclean = TRIP\n"), files: map[string]string{".git/info/attributes": "* filter=evil\n"}, provoke: do("", "add", "-A")},
	"diff.external":     {config: section("[diff]\n\texternal = TRIP\n"), provoke: do("", "diff")},
	"diff driver":       {config: section("[diff \"evil\"]\n\tcommand = TRIP\n"), files: attributes("* diff=evil"), provoke: do("", "diff")},
	"diff textconv":     {config: section("[diff \"evil\"]\n\ttextconv = TRIP\n"), files: attributes("* diff=evil"), provoke: do("", "diff")},
	"core.sshCommand":   {config: section("[core]\n\tsshCommand = TRIP\n[remote \"evil\"]\n\turl = ssh://host.invalid/x\n"), provoke: do("", "fetch", "evil")},
	"core.gitProxy":     {config: section("[core]\n\tgitProxy = TRIP\n[remote \"evil\"]\n\turl = git://host.invalid/x\n"), provoke: do("", "fetch", "evil")},
	"alias":             {config: section("[alias]\n\tevil = !TRIP\n\tls-files = !TRIP\n\trev-parse = !TRIP\n"), provoke: do("", "evil")},
	"credential.helper": {config: section("[credential]\n\thelper = TRIP\n"), provoke: do("url=https://host.invalid\n", "credential", "fill")},
	"core.pager":        {config: section("[core]\n\tpager = TRIP\n[pager]\n\tls-files = TRIP\n"), provoke: provokePager},
	"lazy fetch": {
		config:  section("[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = evil\n[remote \"evil\"]\n\turl = \"ext::TRIP\"\n\tpromisor = true\n[protocol]\n\tallow = always\n[protocol \"ext\"]\n\tallow = always\n"),
		provoke: do("", "cat-file", "-p", "1234567890123456789012345678901234567890"),
	},
	"nested repository": {plant: func(t *testing.T, dir string, w tripwire) {
		inner := filepath.Join(dir, "inner")
		write(t, inner, map[string]string{"x.txt": "1\n", ".gitattributes": "* filter=evil diff=evil\n"})
		plainGit(t, inner, "init", "-q")
		appendTo(t, filepath.Join(inner, ".git/config"), section("[core]\n\tfsmonitor = TRIP\n[filter \"evil\"]\n\tclean = TRIP\n[diff \"evil\"]\n\tcommand = TRIP\n")(w))
	}, provoke: func(t *testing.T, dir string) { tryGit(t, filepath.Join(dir, "inner"), "", "status") }},
	"nested attributes": {config: section("[filter \"evil\"]\n\tclean = TRIP\n"), files: map[string]string{"d/.gitattributes": "* filter=evil\n", "d/x.txt": "1\n"}, provoke: do("", "add", "-A")},
}

func attributes(text string) map[string]string {
	return map[string]string{".gitattributes": text + "\n"}
}

func appendTo(t *testing.T, name, text string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	defer f.Close()
	_, err = f.WriteString(text)
	must(t, err)
}

func plantInclude(t *testing.T, dir string, w tripwire) {
	write(t, dir, map[string]string{"evil.inc": "[core]\n\tfsmonitor = " + w.script + "\n"})
}

func plantHooks(at string) func(*testing.T, string, tripwire) {
	return func(t *testing.T, dir string, w tripwire) {
		for _, hook := range []string{"post-index-change", "reference-transaction", "post-checkout", "pre-commit", "fsmonitor-watchman"} {
			must(t, os.MkdirAll(filepath.Join(dir, at), 0o755))
			must(t, os.Symlink(w.script, filepath.Join(dir, at, hook)))
		}
		if at != ".git/hooks" {
			write(t, dir, map[string]string{".gitignore": at + "/\n"})
		}
	}
}

// provokePager gives git a terminal, without which it starts no pager.
func provokePager(t *testing.T, dir string) {
	t.Helper()
	ptm, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	must(t, err)
	defer ptm.Close()
	must(t, unix.IoctlSetPointerInt(int(ptm.Fd()), unix.TIOCSPTLCK, 0))
	fd, err := unix.IoctlRetInt(int(ptm.Fd()), unix.TIOCGPTPEER)
	if err != nil {
		n, err := unix.IoctlGetInt(int(ptm.Fd()), unix.TIOCGPTN)
		must(t, err)
		fd, err = unix.Open("/dev/pts/"+strconv.Itoa(n), unix.O_RDWR|unix.O_NOCTTY, 0)
		must(t, err)
	}
	tty := os.NewFile(uintptr(fd), "tty")
	defer tty.Close()
	cmd := exec.Command("git", "-p", "ls-files")
	cmd.Dir, cmd.Stdout = dir, tty
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TERM=dumb"}
	cmd.Run()
}

// Nothing that lies in a folder is executed: when it is packed, when a runner
// computes the patch of a tree that holds the same, .git included, and when a
// patch is applied to it. Each tripwire is first seen to fire.
func TestNothingIsExecuted(t *testing.T) {
	for name, h := range hostiles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTripwire(t)
			dir := repository(t, map[string]string{"a.txt": "one\n"})
			write(t, dir, h.files)
			if h.config != nil {
				appendTo(t, filepath.Join(dir, ".git/config"), h.config(w))
			}
			if h.plant != nil {
				h.plant(t, dir, w)
			}
			write(t, dir, map[string]string{"a.txt": "two\n"})
			twin := t.TempDir() // provoking may change the repository
			must(t, exec.Command("cp", "-a", dir+"/.", twin).Run())
			h.provoke(t, twin)
			if !w.fired() {
				t.Fatal("the tripwire did not fire when git was not disarmed: it proves nothing")
			}

			tarball, _ := packed(t, dir)
			if w.fired() {
				t.Fatal("packing executed it")
			}
			work := staged(t, tarball)
			r, err := Init(filepath.Join(t.TempDir(), "git"), work)
			must(t, err)
			must(t, r.Baseline(t.Context()))
			write(t, work, map[string]string{"a.txt": "three\n", "new.txt": "new\n"})
			// Code in the workspace plants the whole hostile repository there.
			must(t, exec.Command("cp", "-a", filepath.Join(dir, ".git"), filepath.Join(work, ".git")).Run())
			p := patchOf(t, r)
			if w.fired() {
				t.Fatal("computing the patch executed it")
			}
			if strings.Contains(string(p), "/.git/") || !strings.Contains(string(p), "+three") {
				t.Errorf("the patch is wrong:\n%s", p)
			}
			must(t, Apply(t.Context(), dir, p))
			if w.fired() {
				t.Fatal("applying executed it")
			}
			if got := tree(t, dir)["a.txt"]; got != "three\n" {
				t.Errorf("a.txt is %q after apply", got)
			}
		})
	}
}

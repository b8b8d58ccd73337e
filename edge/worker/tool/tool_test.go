package tool

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func workspace(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"a.txt": "one\ntwo\n", "d/b.go": "package d\nfunc Two() {}\n", "bin": "a\x00b", ".git/config": "two\n",
		"long.txt": strings.Repeat("x", 3*maxLine) + "two\n",
	} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"in": "a.txt", "out": "/etc/passwd", "up": "../x", "dir": "d"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func run(dir, name, arguments string) (string, int) {
	var out bytes.Buffer
	code := Run(name, dir, strings.NewReader(arguments), &out)
	return out.String(), code
}

func TestTools(t *testing.T) {
	dir := workspace(t)
	for _, tc := range []struct {
		name, arguments string
		code            int
		says            string // the whole output, or a part of it after "…"
	}{
		{"read", `{"path":"a.txt"}`, ExitOK, "one\ntwo\n"},
		{"read", `{"path":"/workspace/a.txt"}`, ExitOK, "one\ntwo\n"},
		{"read", `{"path":"in"}`, ExitOK, "one\ntwo\n"},
		{"read", `{"path":"dir/b.go"}`, ExitOK, "package d\nfunc Two() {}\n"},
		{"read", `{"path":"out"}`, ExitFailed, "out leads out of the workspace through a link"},
		{"read", `{"path":"up"}`, ExitFailed, "up leads out of the workspace through a link"},
		{"read", `{"path":"../x"}`, ExitFailed, "…outside of the workspace"},
		{"read", `{"path":"/etc/passwd"}`, ExitFailed, "…outside of the workspace"},
		{"read", `{"path":"absent"}`, ExitFailed, "absent does not exist"},
		{"read", `{"path":"d"}`, ExitFailed, "d is a folder; list it"},
		{"read", `{"path":"pipe"}`, ExitFailed, "pipe is not a regular file"},
		{"read", `{"path":"bin"}`, ExitFailed, "…not text (3 bytes)"},
		{"read", `{"path":"a.txt","mode":1}`, ExitInvalid, "…unknown field"},
		{"read", `[]`, ExitInvalid, "…not accepted"},
		{"write", `{"path":"new/deep/f.txt","content":"hi"}`, ExitOK, "wrote 2 bytes to new/deep/f.txt"},
		{"read", `{"path":"new/deep/f.txt"}`, ExitOK, "hi"},
		{"write", `{"path":"out","content":"hi"}`, ExitFailed, "out leads out of the workspace through a link"},
		{"write", `{"path":"../x","content":"hi"}`, ExitFailed, "…outside of the workspace"},
		{"write", `{"path":"","content":"hi"}`, ExitFailed, "a file needs a name"},
		{"write", `{"path":"pipe","content":"hi"}`, ExitFailed, "pipe is not a regular file"},
		{"write", `{"path":"a.txt/x","content":"hi"}`, ExitFailed, "…a.txt: file exists"},
		{"list", `{"path":""}`, ExitOK, ".git/\na.txt (8 bytes)\nbin (3 bytes)\nd/\ndir -> d\nin -> a.txt\nlong.txt (1204 bytes)\nnew/\nout -> /etc/passwd\npipe (special file)\nup -> ../x\n"},
		{"list", `{"path":"d"}`, ExitOK, "b.go (24 bytes)\n"},
		{"list", `{"path":"absent"}`, ExitFailed, "absent does not exist"},
		{"search", `{"pattern":"(?i)TWO"}`, ExitOK, "a.txt:2: two\nd/b.go:2: func Two() {}\nlong.txt:1: " + strings.Repeat("x", maxLine) + "…\n"},
		{"search", `{"pattern":"Two","path":"d"}`, ExitOK, "d/b.go:2: func Two() {}\n"},
		{"search", `{"pattern":"none at all"}`, ExitOK, "no matches\n"},
		{"search", `{"pattern":"("}`, ExitInvalid, "…not a regular expression"},
		{"search", `{"pattern":"x","path":"absent"}`, ExitFailed, "absent does not exist"},
		{"delete", `{}`, ExitInvalid, `there is no tool "delete"`},
	} {
		said, code := run(dir, tc.name, tc.arguments)
		part, isPart := strings.CutPrefix(tc.says, "…")
		if code != tc.code || said != tc.says && !(isPart && strings.Contains(said, part)) {
			t.Errorf("%s %s: exit %d, %q; want %d, %q", tc.name, tc.arguments, code, said, tc.code, tc.says)
		}
	}
}

func TestBounds(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "big"), []byte(strings.Repeat("ä", maxRead)), 0o644); err != nil {
		t.Fatal(err)
	}
	said, code := run(dir, "read", `{"path":"big"}`)
	if code != ExitOK || len(said) > maxRead+100 || !strings.Contains(said, "[truncated: the first ") {
		t.Errorf("a large file: exit %d, %d bytes", code, len(said))
	}
	var lines strings.Builder
	for i := range maxMatches + 1 {
		fmt.Fprintf(&lines, "hit %d\n", i)
	}
	if err := os.WriteFile(filepath.Join(dir, "hits"), []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	said, _ = run(dir, "search", `{"pattern":"hit"}`)
	if n := strings.Count(said, "hits:"); n != maxMatches || !strings.Contains(said, "[truncated") {
		t.Errorf("%d matches are shown", n)
	}
	for i := range maxEntries + 1 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%05d", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if said, _ = run(dir, "list", `{"path":""}`); strings.Count(said, "\n") != maxEntries+1 || !strings.Contains(said, "[truncated") {
		t.Errorf("%d lines are listed", strings.Count(said, "\n"))
	}
}

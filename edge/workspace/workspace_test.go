package workspace

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"bivouac/edge/protocol"
)

// folder writes files into a new directory. A name that ends in * is executable,
// a content that begins with "-> " is a link.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	return dir
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		mode := os.FileMode(0o644)
		if n, ok := strings.CutSuffix(name, "*"); ok {
			name, mode = n, 0o755
		}
		at := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(at), 0o755))
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			must(t, os.Symlink(target, at))
			continue
		}
		must(t, os.WriteFile(at, []byte(content), mode))
		must(t, os.Chmod(at, mode))
	}
}

// repository is a folder with one commit of its files.
func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := folder(t, files)
	plainGit(t, dir, "init", "-q", "-b", "main")
	plainGit(t, dir, "add", "-A")
	plainGit(t, dir, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "--no-verify", "-m", "first")
	return dir
}

// plainGit is git as a person runs it: nothing is disarmed.
func plainGit(t *testing.T, dir string, args ...string) {
	t.Helper()
	if out, err := tryGit(t, dir, "", args...); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

func tryGit(t *testing.T, dir, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree reads a directory back into the form of folder, without .git.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	must(t, filepath.WalkDir(dir, func(at string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, at)
		if d.Name() == ".git" {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if d.Type()&os.ModeSymlink != 0 {
			target, _ := os.Readlink(at)
			files[name] = "-> " + target
		} else if d.Type().IsRegular() {
			st, _ := d.Info()
			if st.Mode()&0o100 != 0 {
				name += "*"
			}
			b, err := os.ReadFile(at)
			if err != nil {
				return err
			}
			files[name] = string(b)
		}
		return nil
	}))
	return files
}

func sameTree(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, content := range want {
		if g, ok := got[name]; !ok {
			t.Errorf("%q is missing", name)
		} else if g != content {
			t.Errorf("%q is %.80q, want %.80q", name, g, content)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%q should not be there", name)
		}
	}
}

func packed(t *testing.T, dir string) ([]byte, Manifest) {
	t.Helper()
	var tarball bytes.Buffer
	m, err := Pack(t.Context(), dir, &tarball)
	must(t, err)
	return tarball.Bytes(), m
}

func staged(t *testing.T, tarball []byte) string {
	t.Helper()
	dir := t.TempDir()
	_, err := Stage(t.Context(), bytes.NewReader(tarball), dir)
	must(t, err)
	return dir
}

func wantCode(t *testing.T, err error, code protocol.Code, words ...string) {
	t.Helper()
	if !errors.Is(err, &protocol.Error{Code: code}) {
		t.Fatalf("got %v (code %s), want code %s", err, protocol.CodeOf(err), code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

// What lies in the folder is carried: committed, changed, new; not what is
// ignored or deleted. Equal trees give equal bytes.
func TestPackAndStage(t *testing.T) {
	dir := repository(t, map[string]string{
		"a.txt": "one\n", "gone.txt": "x", "dir/run.sh*": "#!/bin/sh\n", "link": "-> dir/run.sh",
		".gitignore": "out/\n", "dir/up": "-> ../a.txt", "kept.log": "tracked although ignored\n",
		"name with \"quotes\"\nand a line": "odd",
	})
	write(t, dir, map[string]string{"a.txt": "two\n", "new.txt": "new\n", "out/product.bin": "big"})
	must(t, os.Remove(filepath.Join(dir, "gone.txt")))

	tarball, m := packed(t, dir)
	want := tree(t, dir)
	delete(want, "out/product.bin")
	sameTree(t, tree(t, staged(t, tarball)), want)
	if m.Files != len(want) || m.Head == "" || m.Digest == "" {
		t.Errorf("manifest %+v for %d files", m, len(want))
	}

	other := t.TempDir()
	must(t, os.CopyFS(other, os.DirFS(dir)))
	if again, m2 := packed(t, other); !bytes.Equal(again, tarball) || m2.Digest != m.Digest {
		t.Error("equal trees gave different tars")
	}
	write(t, other, map[string]string{"a.txt": "three\n"})
	if again, m2 := packed(t, other); bytes.Equal(again, tarball) || m2.Digest == m.Digest {
		t.Error("different trees gave equal tars")
	}
}

func TestStagedFilesBelongToTheirOwnerAlone(t *testing.T) {
	dir := repository(t, map[string]string{"d/a": "1", "d/b*": "2"})
	tarball, _ := packed(t, dir)
	out := staged(t, tarball)
	for name, want := range map[string]os.FileMode{"d": 0o700, "d/a": 0o600, "d/b": 0o700} {
		st, err := os.Stat(filepath.Join(out, name))
		must(t, err)
		if st.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", name, st.Mode().Perm(), want)
		}
	}
}

func TestPackNeedsARepository(t *testing.T) {
	dir := folder(t, map[string]string{"a.txt": "1"})
	_, err := Pack(t.Context(), dir, io.Discard)
	wantCode(t, err, protocol.CodeFailedPrecondition, dir, "git init")
	plainGit(t, dir, "init", "-q") // the remedy that the error names
	if _, m := packed(t, dir); m.Files != 1 || m.Head != "" {
		t.Errorf("after git init: %+v", m)
	}
	_, err = Pack(t.Context(), filepath.Join(dir, "absent"), io.Discard)
	wantCode(t, err, protocol.CodeInvalidArgument, "absent")
}

func TestPackOfAFolderInsideARepository(t *testing.T) {
	dir := repository(t, map[string]string{"top.txt": "1", "sub/in.txt": "2", "sub/deep/x": "3"})
	tarball, m := packed(t, filepath.Join(dir, "sub"))
	sameTree(t, tree(t, staged(t, tarball)), map[string]string{"in.txt": "2", "deep/x": "3"})
	if m.Head == "" {
		t.Error("no head")
	}
}

// A repository inside is carried as files; its .git is not.
func TestNestedRepositories(t *testing.T) {
	dir := repository(t, map[string]string{"a": "1"})
	inner := filepath.Join(dir, "vendor", "inner")
	write(t, inner, map[string]string{"code.go": "package inner\n", ".gitignore": "junk\n", "junk": "no"})
	plainGit(t, inner, "init", "-q")
	write(t, inner, map[string]string{"deep/x": "2"})
	plainGit(t, filepath.Join(inner, "deep"), "init", "-q")

	tarball, m := packed(t, dir)
	out := staged(t, tarball)
	sameTree(t, tree(t, out), map[string]string{"a": "1", "vendor/inner/code.go": "package inner\n", "vendor/inner/.gitignore": "junk\n", "vendor/inner/deep/x": "2"})
	if !slices.Equal(m.Nested, []string{"vendor/inner", "vendor/inner/deep"}) {
		t.Errorf("nested: %q", m.Nested)
	}
	must(t, filepath.WalkDir(out, func(at string, d os.DirEntry, err error) error {
		if d.Name() == ".git" {
			t.Errorf("a git directory was carried: %s", at)
		}
		return err
	}))
}

func TestPackRefuses(t *testing.T) {
	big := strings.Repeat("x", 2000)
	for name, tc := range map[string]struct {
		files  map[string]string
		plant  func(dir string) error
		limits Limits
		code   protocol.Code
		words  []string
	}{
		"a link to an absolute path":       {files: map[string]string{"evil": "-> /etc/passwd"}, code: protocol.CodePolicyDenied, words: []string{"evil", "/etc/passwd"}},
		"a link that climbs out":           {files: map[string]string{"d/evil": "-> ../../x"}, code: protocol.CodePolicyDenied, words: []string{"d/evil"}},
		"a link that climbs out of a link": {files: map[string]string{"here": "-> .", "evil": "-> here/../x"}, code: protocol.CodePolicyDenied, words: []string{"evil"}},
		"a link into .git":                 {files: map[string]string{"evil": "-> .git/config"}, code: protocol.CodePolicyDenied, words: []string{"evil", "protected"}},
		"a pipe": {files: map[string]string{"pipe": "x"}, plant: func(dir string) error {
			os.Remove(filepath.Join(dir, "pipe"))
			return syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600)
		}, code: protocol.CodeInvalidArgument, words: []string{"pipe", "named pipe"}},
		"a large file":   {files: map[string]string{"big.bin": big}, limits: Limits{10, 1000, 1 << 20, 100}, code: protocol.CodeInvalidArgument, words: []string{"big.bin", ".gitignore"}},
		"too much":       {files: map[string]string{"a": big, "b": big}, limits: Limits{10, 10000, 3000, 100}, code: protocol.CodeInvalidArgument, words: []string{"larger than"}},
		"too many files": {files: map[string]string{"a": "", "b": "", "c": ""}, limits: Limits{2, 10, 10, 100}, code: protocol.CodeInvalidArgument, words: []string{"more than 2 files"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := repository(t, tc.files)
			if tc.plant != nil {
				must(t, tc.plant(dir))
			}
			_, err := Packer{Limits: tc.limits}.Pack(t.Context(), dir, io.Discard)
			wantCode(t, err, tc.code, tc.words...)
			// The positive twin: without the offending entries it is carried.
			for n := range tc.files {
				must(t, os.Remove(filepath.Join(dir, n)))
			}
			if _, err := (Packer{Limits: tc.limits}).Pack(t.Context(), dir, io.Discard); err != nil {
				t.Errorf("the rest was refused too: %v", err)
			}
		})
	}
}

func TestPackReportsProgressAndCancels(t *testing.T) {
	dir := repository(t, map[string]string{"a": "1", "b": "22", "c": "333"})
	ctx, cancel := context.WithCancelCause(t.Context())
	var seen []Progress
	p := Packer{ProgressFunc: func(p Progress) { seen = append(seen, p) }}
	_, err := p.Pack(ctx, dir, io.Discard)
	must(t, err)
	if want := []Progress{{1, 3, 1}, {2, 3, 3}, {3, 3, 6}}; !slices.Equal(seen, want) {
		t.Errorf("progress %v, want %v", seen, want)
	}
	stop := errors.New("stopped by the person")
	p.ProgressFunc = func(Progress) { cancel(stop) }
	if _, err := p.Pack(ctx, dir, io.Discard); !errors.Is(err, stop) {
		t.Errorf("got %v, want the cause", err)
	}
}

// A link inside a folder that became a link is behind it: not carried, not followed.
func TestPackDoesNotReadThroughLinks(t *testing.T) {
	secret := folder(t, map[string]string{"in.txt": "secret"})
	dir := repository(t, map[string]string{"a": "1", "d/in.txt": "open"})
	must(t, os.RemoveAll(filepath.Join(dir, "d")))
	must(t, os.Symlink(secret, filepath.Join(dir, "d")))
	_, err := Pack(t.Context(), dir, io.Discard)
	wantCode(t, err, protocol.CodePolicyDenied, "\"d\"")
	write(t, dir, map[string]string{".gitignore": "d\n"})
	tarball, _ := packed(t, dir)
	if bytes.Contains(tarball, []byte("secret")) {
		t.Error("a file outside of the folder was carried")
	}
}

func TestStageRefuses(t *testing.T) {
	type h = tar.Header
	reg := func(name string) h { return h{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: 1} }
	sum := func(name string) string {
		d := newTreeDigest()
		e := [32]byte{}
		copy(e[:], mustSum("x"))
		d.file(name, false, e[:])
		return d.text()
	}
	build := func(hs []h, base string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, e := range hs {
			must(t, w.WriteHeader(&e))
			if e.Size > 0 {
				io.WriteString(w, "x")
			}
		}
		if base != "" {
			must(t, w.WriteHeader(&h{Typeflag: tar.TypeReg, Name: baseName, Mode: 0o644, Size: int64(len(base))}))
			io.WriteString(w, base)
		}
		must(t, w.Close())
		return b.Bytes()
	}
	good := `{"head":"","digest":"` + sum("ok") + `"}`
	if _, err := Stage(t.Context(), bytes.NewReader(build([]h{reg("ok")}, good)), t.TempDir()); err != nil {
		t.Fatalf("the positive twin was refused: %v", err)
	}
	for name, tc := range map[string]struct {
		entries []h
		base    string
		code    protocol.Code
	}{
		"..":                    {[]h{reg("../x")}, good, protocol.CodeInvalidArgument},
		"inner ..":              {[]h{reg("a/../../x")}, good, protocol.CodeInvalidArgument},
		"absolute":              {[]h{reg("/etc/x")}, good, protocol.CodeInvalidArgument},
		"dot":                   {[]h{reg("./x")}, good, protocol.CodeInvalidArgument},
		".git":                  {[]h{reg(".git/hooks/post-checkout")}, good, protocol.CodePolicyDenied},
		".GIT deep":             {[]h{reg("a/.GIT/config")}, good, protocol.CodePolicyDenied},
		"git~1":                 {[]h{reg("a/git~1/config")}, good, protocol.CodePolicyDenied},
		"ignorable code points": {[]h{reg(".g\u200cit/config")}, good, protocol.CodePolicyDenied},
		".bivouac":              {[]h{reg(".bivouac/other")}, good, protocol.CodePolicyDenied},
		"device":                {[]h{{Typeflag: tar.TypeChar, Name: "dev"}}, good, protocol.CodePolicyDenied},
		"pipe":                  {[]h{{Typeflag: tar.TypeFifo, Name: "p"}}, good, protocol.CodePolicyDenied},
		"hard link":             {[]h{reg("a"), {Typeflag: tar.TypeLink, Name: "b", Linkname: "a"}}, good, protocol.CodePolicyDenied},
		"link out":              {[]h{{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/etc"}}, good, protocol.CodePolicyDenied},
		"write through a link":  {[]h{{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "d"}, reg("l/x")}, good, protocol.CodeInvalidArgument},
		"twice":                 {[]h{reg("a"), reg("a")}, good, protocol.CodeInvalidArgument},
		"out of order":          {[]h{reg("b"), reg("a")}, good, protocol.CodeInvalidArgument},
		"file below a file":     {[]h{reg("a"), reg("a/b")}, good, protocol.CodeInvalidArgument},
		"no base":               {[]h{reg("ok")}, "", protocol.CodeDataLoss},
		"wrong digest":          {[]h{reg("other")}, good, protocol.CodeDataLoss},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "ws")
			must(t, os.Mkdir(dir, 0o700))
			_, err := Stage(t.Context(), bytes.NewReader(build(tc.entries, tc.base)), dir)
			wantCode(t, err, tc.code)
			if left, _ := os.ReadDir(parent); len(left) != 1 {
				t.Errorf("something was written outside: %v", left)
			}
		})
	}
	cut := build([]h{reg("ok")}, good)
	_, err := Stage(t.Context(), bytes.NewReader(cut[:700]), t.TempDir())
	wantCode(t, err, protocol.CodeDataLoss)
	_, err = Stage(t.Context(), bytes.NewReader(cut), folder(t, map[string]string{"left": "x"}))
	wantCode(t, err, protocol.CodeFailedPrecondition)
}

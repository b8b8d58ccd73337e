package workspace

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// pack makes an archive as nobody's Pack would: the entries as they are, then the
// base entry for the tree that they claim to be.
type pack struct {
	t   testing.TB
	out bytes.Buffer
	w   *tar.Writer
	sum *treeDigest
}

func newPack(t testing.TB) *pack {
	p := &pack{t: t, sum: newTreeDigest()}
	p.w = tar.NewWriter(&p.out)
	return p
}

func (p *pack) header(h tar.Header) *pack {
	p.t.Helper()
	must(p.t, p.w.WriteHeader(&h))
	return p
}

func (p *pack) file(name, text string) *pack {
	p.t.Helper()
	p.header(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))})
	_, err := io.WriteString(p.w, text)
	must(p.t, err)
	p.sum.file(name, false, mustSum(text))
	return p
}

func (p *pack) link(name, target string) *pack {
	p.t.Helper()
	p.header(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target})
	p.sum.link(name, target)
	return p
}

func (p *pack) bytes() []byte {
	p.t.Helper()
	base := `{"head":"","digest":"` + p.sum.text() + `"}`
	p.header(tar.Header{Typeflag: tar.TypeReg, Name: baseName, Mode: 0o644, Size: int64(len(base))})
	_, err := io.WriteString(p.w, base)
	must(p.t, err)
	must(p.t, p.w.Close())
	return p.out.Bytes()
}

// Each hostile archive beside a rightful one that differs in the hostile part alone.
// A refused one leaves nothing outside of its folder.
func TestHostileArchives(t *testing.T) {
	small := Limits{MaxFiles: 20, MaxFileBytes: 1 << 20, MaxBytes: 2 << 20, MaxNameBytes: 200}
	files := func(n int) *pack {
		p := newPack(t)
		for i := range n {
			p.file(fmt.Sprintf("f%03d", i), "x")
		}
		return p
	}
	deep := func(folders int) *pack { return newPack(t).file(strings.Repeat("d/", folders)+"f", "x") }
	sized := func(name string, each ...int) *pack {
		p := newPack(t)
		for i, n := range each {
			p.file(fmt.Sprintf("%s%d", name, i), strings.Repeat("x", n))
		}
		return p
	}
	for name, tc := range map[string]struct {
		hostile, rightful *pack
		code              protocol.Code
	}{
		"parent folder":          {newPack(t).file("../x", "x"), newPack(t).file("x", "x"), protocol.CodeInvalidArgument},
		"parent folder inside":   {newPack(t).file("a/../../x", "x"), newPack(t).file("a/x", "x"), protocol.CodeInvalidArgument},
		"absolute":               {newPack(t).file("/tmp/x", "x"), newPack(t).file("tmp/x", "x"), protocol.CodeInvalidArgument},
		"character device":       {newPack(t).header(tar.Header{Typeflag: tar.TypeChar, Name: "n", Devmajor: 1, Devminor: 3}), newPack(t).file("n", "x"), protocol.CodePolicyDenied},
		"block device":           {newPack(t).header(tar.Header{Typeflag: tar.TypeBlock, Name: "n", Devmajor: 8}), newPack(t).file("n", "x"), protocol.CodePolicyDenied},
		"pipe":                   {newPack(t).header(tar.Header{Typeflag: tar.TypeFifo, Name: "n"}), newPack(t).file("n", "x"), protocol.CodePolicyDenied},
		"hard link out":          {newPack(t).header(tar.Header{Typeflag: tar.TypeLink, Name: "n", Linkname: "/etc/passwd"}), newPack(t).file("m", "x").link("n", "m"), protocol.CodePolicyDenied},
		"hard link inside":       {newPack(t).file("m", "x").header(tar.Header{Typeflag: tar.TypeLink, Name: "n", Linkname: "m"}), newPack(t).file("m", "x").link("n", "m"), protocol.CodePolicyDenied},
		"link out":               {newPack(t).link("n", "../../x"), newPack(t).link("a/n", "../x"), protocol.CodePolicyDenied},
		"link to an absolute":    {newPack(t).link("n", "/etc"), newPack(t).link("n", "etc"), protocol.CodePolicyDenied},
		"link out by a link":     {newPack(t).link("a", "b/..").link("b", "c"), newPack(t).link("a", "b").link("b", "c"), protocol.CodePolicyDenied},
		"file through a link":    {newPack(t).link("a", "b").file("a/x", "x"), newPack(t).link("a", "b").file("b/x", "x"), protocol.CodeInvalidArgument},
		"link over a folder":     {newPack(t).file("a/x", "x").link("a/x/y", "../z"), newPack(t).file("a/x", "x").link("a/y", "z"), protocol.CodeInvalidArgument},
		"too many entries":       {files(21), files(20), protocol.CodeInvalidArgument},
		"too many folders":       {deep(21), deep(20), protocol.CodeInvalidArgument},
		"a file that is too big": {sized("f", 1<<20+1), sized("f", 1<<20), protocol.CodeInvalidArgument},
		"all too big":            {sized("f", 1<<20, 1<<20, 1), sized("f", 1<<20, 1<<20), protocol.CodeInvalidArgument},
		"a name that is too big": {newPack(t).file(strings.Repeat("n", 201), "x"), newPack(t).file(strings.Repeat("n", 200), "x"), protocol.CodeInvalidArgument},
		"a global header":        {newPack(t).header(tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"path": "../x"}}), newPack(t).file("x", "x"), protocol.CodeInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "ws")
			must(t, os.Mkdir(dir, 0o700))
			_, err := StageWithin(t.Context(), bytes.NewReader(tc.hostile.bytes()), dir, small)
			if code := protocol.CodeOf(err); code != tc.code && (name != "a global header" || err == nil) {
				t.Errorf("got %v, want %s", err, tc.code)
			}
			if left, _ := os.ReadDir(parent); len(left) != 1 {
				t.Errorf("something was written outside: %v", left)
			}
			if _, err := StageWithin(t.Context(), bytes.NewReader(tc.rightful.bytes()), t.TempDir(), small); err != nil {
				t.Errorf("the rightful twin: %v", err)
			}
		})
	}
}

// A file of ten gigabytes of nothing is a few bytes in an archive. It counts as what
// it would be on the disk; a small one is a file like others.
func TestSparseArchives(t *testing.T) {
	if _, err := exec.LookPath("tar"); err != nil {
		t.Skip("GNU tar makes these archives: ", err)
	}
	archive := func(size int64, format string) []byte {
		dir := t.TempDir()
		f, err := os.Create(filepath.Join(dir, "f"))
		must(t, err)
		must(t, f.Truncate(size))
		must(t, f.Close())
		sum := newTreeDigest()
		zeros := mustSum("")
		if size < 10<<20 {
			zeros = mustSum(strings.Repeat("\x00", int(size)))
		}
		sum.file("f", false, zeros)
		must(t, os.Mkdir(filepath.Join(dir, ".bivouac"), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, baseName), []byte(`{"head":"","digest":"`+sum.text()+`"}`), 0o644))
		out, err := exec.Command("tar", "-C", dir, "-S", "--format="+format, "--mode=0644", "-cf", "-", "f", baseName).Output()
		must(t, err)
		if len(out) > 1<<20 {
			t.Fatalf("the archive of %d bytes has %d itself: it is not sparse", size, len(out))
		}
		return out
	}
	_, err := Stage(t.Context(), bytes.NewReader(archive(10<<30, "posix")), t.TempDir())
	wantCode(t, err, protocol.CodeInvalidArgument, "a file may have")
	if _, err := Stage(t.Context(), bytes.NewReader(archive(5<<20, "posix")), t.TempDir()); err != nil {
		t.Errorf("a small sparse file: %v", err)
	}
	// The older form is a kind of entry of its own.
	_, err = Stage(t.Context(), bytes.NewReader(archive(10<<30, "gnu")), t.TempDir())
	wantCode(t, err, protocol.CodePolicyDenied, "only files and links")
}

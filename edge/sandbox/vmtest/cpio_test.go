//go:build linux

package vmtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// image is the initial file system of a machine, in the "newc" form of cpio that
// the kernel reads.
type image struct {
	t    *testing.T
	out  bytes.Buffer
	have map[string]bool
}

func newImage(t *testing.T) *image { return &image{t: t, have: map[string]bool{}} }

// Kinds of entries, as stat has them.
const (
	kindFolder = 0o040000
	kindFile   = 0o100000
	kindLink   = 0o120000
)

func (i *image) entry(name string, mode uint32, content []byte) {
	if i.have[name] {
		return
	}
	i.have[name] = true
	fmt.Fprintf(&i.out, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		len(i.have), mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	i.out.WriteString(name + "\x00")
	i.pad()
	i.out.Write(content)
	i.pad()
}

func (i *image) pad() {
	for i.out.Len()%4 != 0 {
		i.out.WriteByte(0)
	}
}

func (i *image) folder(name string) {
	if parent := filepath.Dir(name); parent != "." {
		i.folder(parent)
	}
	i.entry(name, kindFolder|0o755, nil)
}

func (i *image) link(name, target string) {
	i.folder(filepath.Dir(name))
	i.entry(name, kindLink|0o777, []byte(target))
}

// file copies one of this machine's.
func (i *image) file(name, from string) {
	i.t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		i.t.Fatal(err)
	}
	i.folder(filepath.Dir(name))
	i.entry(name, kindFile|0o755, b)
}

// bytes ends the archive.
func (i *image) bytes() []byte {
	i.entry("TRAILER!!!", 0, nil)
	return i.out.Bytes()
}

var library = regexp.MustCompile(`(/\S+) \(0x`)

// program copies one of this machine's with the libraries that it needs.
func (i *image) program(name string) {
	i.t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		i.t.Fatalf("the machine of the test needs %s: %v", name, err)
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		i.t.Fatal(err)
	}
	i.file("usr/bin/"+name, path)
	out, err := exec.Command("ldd", path).CombinedOutput()
	if err != nil {
		return // static
	}
	for _, m := range library.FindAllStringSubmatch(string(out), -1) {
		real, err := filepath.EvalSymlinks(m[1])
		if err != nil {
			i.t.Fatal(err)
		}
		at := m[1][1:]
		if at[:3] == "lib" { // merged into /usr
			at = "usr/" + at
		}
		i.file(at, real)
	}
}

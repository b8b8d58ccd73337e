//go:build linux

package stack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// Binaries of the product.
var Binaries = []string{"bivouac", "bivouac-server", "bivouac-broker", "bivouac-edge", "bivouac-worker"}

// builds are the directories of binaries that this process made, by build tags.
var builds struct {
	sync.Mutex
	made map[string]*build
}

type build struct {
	once sync.Once
	dir  string
	err  error
}

// Build builds all binaries with the given tags, once in a process, statically as
// they are shipped. The caller's module is the product's.
func Build(tags ...string) (dir string, err error) {
	key := strings.Join(tags, ",")
	builds.Lock()
	if builds.made == nil {
		builds.made = map[string]*build{}
	}
	b := builds.made[key]
	if b == nil {
		b = &build{}
		builds.made[key] = b
	}
	builds.Unlock()
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "bivouac-bin-"); b.err == nil {
			b.err = compile(b.dir, key, Binaries...)
		}
	})
	return b.dir, b.err
}

// Rebuild is what Build made with the tags base, with one binary built anew with
// more tags.
func Rebuild(name, base, more string) (dir string, err error) {
	from, err := Build(base)
	if err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp("", "bivouac-bin-"); err != nil {
		return "", err
	}
	builds.Lock()
	builds.made[name+" "+base+","+more] = &build{dir: dir} // to be removed
	builds.Unlock()
	for _, other := range Binaries {
		if other == name {
			continue
		}
		if err := os.Link(filepath.Join(from, other), filepath.Join(dir, other)); err != nil {
			return "", err
		}
	}
	return dir, compile(dir, base+","+more, name)
}

func compile(dir, tags string, binaries ...string) error {
	var packages []string
	for _, name := range binaries {
		packages = append(packages, "bivouac/cmd/"+name)
	}
	return Compile(dir, tags, packages...)
}

// Compile builds programs of the module into a folder, statically, such as one that
// stands in a binary's place.
func Compile(dir, tags string, packages ...string) error {
	args := append([]string{"build", "-trimpath", "-tags", tags, "-o", dir + string(filepath.Separator)}, packages...)
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build with tags %q: %w\n%s", tags, err, out)
	}
	return nil
}

// RemoveBuilds removes what Build made; TestMain calls it last.
func RemoveBuilds() {
	builds.Lock()
	defer builds.Unlock()
	for _, b := range builds.made {
		os.RemoveAll(b.dir)
	}
	builds.made = nil
}

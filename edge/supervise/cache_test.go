package supervise

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// moduleCache fills a cache as its owner does, with one module that go downloads
// from a folder, and returns the project that needs it.
func moduleCache(t *testing.T, goroot string) (cache string, project map[string]string) {
	t.Helper()
	cache = t.TempDir()
	t.Cleanup(func() { exec.Command("chmod", "-R", "u+w", cache).Run() })
	must(t, os.Chmod(cache, 0o755))
	proxy := moduleProxy(t)
	project = map[string]string{
		"go.mod":  "module example.test/project\n\ngo 1.21\n\nrequire example.test/greet v1.0.0\n",
		"main.go": "package main\n\nimport \"example.test/greet\"\n\nfunc main() { println(greet.Word) }\n",
	}
	dir := t.TempDir()
	for name, text := range project {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	tidy := exec.Command(filepath.Join(goroot, "bin", "go"), "mod", "tidy")
	tidy.Dir = dir
	tidy.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GOMODCACHE=" + cache, "GOPROXY=file://" + proxy, "GONOSUMDB=*", "GOFLAGS=-mod=mod", "GOTOOLCHAIN=local", "GOCACHE=" + t.TempDir()}
	if out, err := tidy.CombinedOutput(); err != nil {
		t.Fatalf("go mod tidy: %v\n%s", err, out)
	}
	sum, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	must(t, err)
	project["go.sum"] = string(sum)
	return cache, project
}

// moduleProxy is a folder that go reads as a module proxy, with one module.
func moduleProxy(t *testing.T) string {
	t.Helper()
	proxy := t.TempDir()
	at := filepath.Join(proxy, "example.test", "greet", "@v")
	must(t, os.MkdirAll(at, 0o755))
	for name, text := range map[string]string{"list": "v1.0.0\n", "v1.0.0.info": `{"Version":"v1.0.0"}`, "v1.0.0.mod": "module example.test/greet\n"} {
		must(t, os.WriteFile(filepath.Join(at, name), []byte(text), 0o644))
	}
	var packed bytes.Buffer
	z := zip.NewWriter(&packed)
	for name, text := range map[string]string{"go.mod": "module example.test/greet\n", "greet.go": "package greet\n\nconst Word = \"from the cache\"\n"} {
		w, err := z.Create("example.test/greet@v1.0.0/" + name)
		must(t, err)
		_, err = w.Write([]byte(text))
		must(t, err)
	}
	must(t, z.Close())
	must(t, os.WriteFile(filepath.Join(at, "v1.0.0.zip"), packed.Bytes(), 0o644))
	return proxy
}

// Packages come from the owner's cache, without a network, and no sandbox can put
// anything into it for the next one. INV-12.
func TestCacheCannotBePoisoned(t *testing.T) {
	found, err := exec.LookPath("go")
	must(t, err)
	if found, err = filepath.EvalSymlinks(found); err != nil {
		t.Fatal(err)
	}
	goroot := filepath.Dir(filepath.Dir(found))
	cache, project := moduleCache(t, goroot)
	attempt := func(commands ...string) string {
		t.Helper()
		cfg := real(t, &broker{})
		cfg.Toolchains = []Toolchain{{Name: "go", Path: goroot}}
		cfg.Caches = []Cache{{Name: "go", Path: cache, Env: []string{"GOPROXY=file:///caches/go/cache/download", "GOFLAGS=-modcacherw"}}}
		r := start(t, cfg)
		r.handOver(scripted(script(commands)), repository(t, project), nil)
		_, all := r.result()
		var texts []string
		for _, got := range toolResults(t, all) {
			texts = append(texts, got.Text)
		}
		r.acknowledge(all)
		return strings.Join(texts, "")
	}
	const held = "/caches/go/cache/download/example.test/greet/@v/v1.0.0.zip"
	evil := []string{
		"echo poison > " + held, "rm " + held, "mv " + held + " /workspace/x", "ln " + held + " /workspace/hard && echo poison > /workspace/hard",
		"mkdir /caches/go/made", "chmod -R u+w /caches/go", "mv /caches/go /caches/old", "mkdir -p /caches/other/x",
		"mount -o remount,rw /caches/go", "echo poison > /proc/self/root" + held, "touch -t 200001010000 " + held,
		"ln -s " + held + " /workspace/soft && echo poison > /workspace/soft",
	}
	said := attempt("for try in 1; do true; done; " + strings.Join(guarded(evil), "; ") + "; echo tried")
	if strings.Contains(said, "DONE") || !strings.Contains(said, "tried") {
		t.Errorf("a sandbox changed the cache:\n%s", said)
	}
	// The positive twin: the same commands do change a folder of the sandbox's own.
	own := make([]string, 0, len(evil))
	for _, e := range evil[:2] {
		own = append(own, strings.ReplaceAll(e, held, "$HOME/own"))
	}
	if said := attempt("echo x > $HOME/own; " + strings.Join(guarded(own), "; ")); strings.Count(said, "DONE") != 2 {
		t.Errorf("the detector is blind:\n%s", said)
	}
	if said := attempt("go run . 2>&1"); !strings.HasSuffix(said, "\nfrom the cache\n") {
		t.Errorf("the next turn's packages: %s", said)
	}
}

// npmCache fills a cache of npm with one package, and returns the project that
// needs it.
func npmCache(t *testing.T) (cache string, project map[string]string) {
	t.Helper()
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("npm is not installed here")
	}
	cache = t.TempDir()
	must(t, os.Chmod(cache, 0o755))
	packed := npmPackage(t)
	file := filepath.Join(t.TempDir(), "greet.tgz")
	must(t, os.WriteFile(file, packed, 0o644))
	add := exec.Command(npm, "cache", "add", file)
	add.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "npm_config_cache=" + cache, "npm_config_update_notifier=false"}
	if out, err := add.CombinedOutput(); err != nil {
		t.Fatalf("npm cache add: %v\n%s", err, out)
	}
	must(t, filepath.WalkDir(cache, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(name, map[bool]os.FileMode{true: 0o755, false: 0o644}[d.IsDir()])
	}))
	sum := sha512.Sum512(packed)
	return cache, map[string]string{
		"package.json": `{"name":"p","version":"1.0.0","dependencies":{"greet":"1.0.0"}}`,
		"package-lock.json": `{"name":"p","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{` +
			`"":{"name":"p","version":"1.0.0","dependencies":{"greet":"1.0.0"}},"node_modules/greet":{"version":"1.0.0",` +
			`"resolved":"https://registry.invalid/greet/-/greet-1.0.0.tgz","integrity":"sha512-` + base64.StdEncoding.EncodeToString(sum[:]) + `"}}}`,
	}
}

// npmPackage is one package, as a registry has it.
func npmPackage(t *testing.T) []byte {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	for name, text := range map[string]string{"package/package.json": `{"name":"greet","version":"1.0.0","main":"i.js"}`, "package/i.js": `module.exports = "from the cache"`} {
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))}))
		_, err := w.Write([]byte(text))
		must(t, err)
	}
	must(t, errors.Join(w.Close(), z.Close()))
	return packed.Bytes()
}

// npm takes a cache that it cannot write to.
func TestCacheOfNpm(t *testing.T) {
	cache, project := npmCache(t)
	cfg := real(t, &broker{})
	cfg.Caches = []Cache{{Name: "npm", Path: cache, Env: []string{"npm_config_cache=/caches/npm", "npm_config_offline=true"}}}
	r := start(t, cfg)
	r.handOver(scripted(script([]string{"npm ci >npm.log 2>&1 && node -p 'require(\"greet\")' || cat npm.log"})), repository(t, project), nil)
	_, all := r.result()
	if got := toolResults(t, all); len(got) != 1 || got[0].Text != "from the cache\n" {
		t.Errorf("npm: %v", got)
	}
	r.acknowledge(all)
}

// guarded prints DONE after each command that succeeds.
func guarded(commands []string) (out []string) {
	for _, c := range commands {
		out = append(out, "("+c+") 2>/dev/null && echo DONE")
	}
	return out
}

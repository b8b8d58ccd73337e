package owner_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"bivouac/edge/device"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
)

func TestFreshFileAllowsNothingOnTheMachine(t *testing.T) {
	name := filepath.Join(t.TempDir(), "edge.hcl")
	for _, write := range []bool{false, true} {
		if write {
			if err := os.WriteFile(name, owner.Render(owner.Default()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p, err := owner.Load(name)
		if err != nil || len(p.Folders)+len(p.Toolchains) != 0 || p.Slots != 1 {
			t.Errorf("written %v: %+v, %v", write, p, err)
		}
	}
}

func TestRenderReadsBack(t *testing.T) {
	dir := t.TempDir()
	folder, err := owner.FolderFlag("notes=" + dir + ":rw")
	if err != nil {
		t.Fatal(err)
	}
	tool, err := owner.ToolchainFlag("go=/usr/share")
	if err != nil {
		t.Fatal(err)
	}
	want := owner.Policy{Slots: 3, Broker: "b.example:7402", Folders: []device.Folder{folder}, Toolchains: []owner.Toolchain{tool},
		SecondKeys: []owner.SecondKey{{Over: device.Write, TTL: time.Hour}, owner.KeyFlag(secondkey.Turn), {Over: device.Read, TTL: 90 * time.Second}},
		Cgroup:     "given/by-root", RefuseEgress: true, Quota: owner.Quota{ActiveActions: 3, TokensPerDay: 5000}, Caches: []owner.Cache{{Name: "wheels", Path: "/usr/share", Env: []string{"PIP_NO_INDEX=1"}}, {Name: "plain", Path: "/usr/lib"}}}
	got, err := owner.Parse("edge.hcl", owner.Render(want))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	// The documented example is a valid file when it is uncommented.
	var lines []string
	for line := range strings.SplitSeq(string(owner.Render(owner.Default())), "\n") {
		if rest, ok := strings.CutPrefix(line, "# "); ok && (strings.ContainsAny(rest, "={}") || strings.HasPrefix(rest, "  ")) {
			line = rest
		}
		lines = append(lines, line)
	}
	src := strings.NewReplacer("/home/me/notes", dir, "/usr/local/go", "/usr/share", "/srv/go-modules", "/usr/share", "/srv/wheels", "/usr/share").Replace(strings.Join(lines, "\n"))
	p, err := owner.Parse("edge.hcl", []byte(src))
	if err != nil || len(p.Folders) != 1 || len(p.Toolchains) != 1 || len(p.Caches) != 2 || len(p.SecondKeys) != 1 || !p.RefuseEgress || p.Quota != (owner.Quota{ActiveActions: 4, TokensPerDay: 2_000_000}) || p.Cgroup == "" || p.Limits.MemoryBytes != 4096<<20 || p.Broker == "" {
		t.Errorf("the example reads as %+v, %v", p, err)
	}
}

func TestEveryProblemIsNamedWithItsLine(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	file := filepath.Join(dir, "file")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	src := fmt.Sprintf(`slots = 900
folder "Notes" {
  path    = "relative"
  actions = ["files.delete"]
}
folder "own" {
  path    = %q
  actions = []
}
folder "f" {
  path = %q
}
toolchain "t" { path = "/proc/self" }
toolchain "t" { path = %q }
limits { pids = "many" }
broker = "no-port"
sandbox = "off"
toolchain "scratch" { path = "/tmp" }
cache "run" { path = "/run" }
cache "own" { path = %[1]q }
cache "c" {
  path = "/usr/share"
  env = { "a b" = "x", PATH = "/evil", LD_PRELOAD = "/evil", GOOD = "x" }
}
cache "c" { path = "/usr/share" }
cgroup = "../up"
folder "w" {
  path    = %[4]q
  actions = ["files.write"]
}
cache "poisoned" { path = %[4]q }
second_key "files.delete" {}
second_key "turn" { ttl = "1s" }
second_key "turn" { ttl = "soon" }
quota { max_active_actions = 0 }
quota { max_tokens_per_day = "some" }
package_egress = "perhaps"
`, state, file, dir, t.TempDir())
	_, err := owner.Parse("edge.hcl", []byte(src), state)
	if protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		"edge.hcl:1: slots must be a whole number from 0 to 64",
		`edge.hcl:2: folder "Notes": a name has`,
		`edge.hcl:3: folder Notes: "relative" is not absolute`,
		`edge.hcl:4: "files.delete" is no action`,
		"edge.hcl:7: folder own: ", "lies in Bivouac's own directory",
		`edge.hcl:8: folder "own" allows no action`,
		"edge.hcl:10: Missing required argument",
		"edge.hcl:11: folder f: ", "is not a directory",
		"edge.hcl:13: toolchain t: \"/proc/self\" is a place of the whole machine",
		`edge.hcl:14: there are two toolchains named "t"`,
		"edge.hcl:14: toolchain t: ", "would show Bivouac's own directory",
		"edge.hcl:15: pids must be number",
		"edge.hcl:16: broker must be host:port",
		"edge.hcl:17: Unsupported argument",
		`edge.hcl:18: toolchain scratch: "/tmp" lies in /tmp, which sandboxed code has for itself`,
		`edge.hcl:19: cache run: "/run" is a place of the whole machine`,
		"edge.hcl:20: cache own: ", "would show Bivouac's own directory",
		`edge.hcl:23: cache c: "a b" is no name of a variable`, "edge.hcl:23: cache c: PATH is the sandbox's own", "edge.hcl:23: cache c: LD_PRELOAD is",
		`edge.hcl:25: there are two caches named "c"`,
		`edge.hcl:26: cgroup: "../up" is no folder`,
		`edge.hcl:31: cache poisoned: agents may write to it by the folder "w"`,
		`edge.hcl:32: second_key "files.delete": there is no such work: files.list, files.read, files.write and turn are`,
		`edge.hcl:33: second_key turn: ttl must be a duration from 10s to 24h`,
		`edge.hcl:34: there are two second_keys over "turn"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("missing %q", want)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
	if _, err := owner.Parse("edge.hcl", []byte("slots = \n")); err == nil || !strings.Contains(err.Error(), "edge.hcl:1") {
		t.Errorf("a syntax error: %v", err)
	}
}

func TestLimitsOnlyNarrow(t *testing.T) {
	l := owner.Limits{MemoryBytes: 100, PIDs: 50}
	got := l.Narrow(&runnerv1.SandboxLimits{MemoryBytes: 200, Pids: 10, CpuMillis: 7, OutputBytes: 9})
	if got.MemoryBytes != 100 || got.Pids != 10 || got.CpuMillis != 7 || got.OutputBytes != 9 || got.DiskBytes != 0 {
		t.Errorf("%v", got)
	}
}

func TestFolderFlag(t *testing.T) {
	for flag, want := range map[string]string{
		"n=/a":    "n /a files.list,files.read",
		"n=/a:r":  "n /a files.list,files.read",
		"n=/a:rw": "n /a files.list,files.read,files.write",
	} {
		f, err := owner.FolderFlag(flag)
		if got := fmt.Sprintf("%s %s %s", f.Name, filepath.ToSlash(f.Path), strings.Join(f.Actions, ",")); err != nil || got != want {
			t.Errorf("%s: %s, %v", flag, got, err)
		}
	}
	odd := filepath.Join(t.TempDir(), "notes:ro")
	if err := os.Mkdir(odd, 0o700); err != nil {
		t.Fatal(err)
	}
	if f, err := owner.FolderFlag("n=" + odd); err != nil || f.Path != odd {
		t.Errorf("a folder that is named so: %+v, %v", f, err)
	}
	if _, err := owner.FolderFlag("n=" + filepath.Dir(odd) + ":rwx"); err == nil || !strings.Contains(err.Error(), ":r is for reading, :rw also for writing") {
		t.Errorf("a mistyped end: %v", err)
	}
	for _, flag := range []string{"", "n", "=/a", "n=", "n=/a:rwx", "n=/a:w", "n=/a:ro"} {
		if _, err := owner.FolderFlag(flag); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%q: %v", flag, err)
		}
	}
}

// A problem with a flag names the flag: nobody wrote a file with lines.
func TestCheckFlagsNamesTheFlag(t *testing.T) {
	good := t.TempDir()
	folder := func(path string) owner.Policy {
		p := owner.Default()
		p.Folders = []device.Folder{{Name: "notes", Path: path, Actions: []string{device.Read}}}
		return p
	}
	tool, slots := owner.Default(), owner.Default()
	tool.Toolchains = []owner.Toolchain{{Name: "go", Path: filepath.Join(good, "absent")}}
	slots.Slots = 1000
	for want, p := range map[string]owner.Policy{
		"--allow-folder notes: ": folder(filepath.Join(good, "absent")), "--toolchain go: ": tool, "--slots: ": slots,
	} {
		err := owner.CheckFlags(p)
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := owner.CheckFlags(folder(good)); err != nil { // the positive twin
		t.Error(err)
	}
}

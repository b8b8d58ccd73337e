package owner

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"bivouac/edge/device"
	"bivouac/edge/protocol"
)

const header = `# What a runner may do on this machine. It only narrows what the server asks.
# Check it with: bivouac-edge status    A change takes effect when the file is saved.

# Turns that may run at once in sandboxes; 0 refuses them.
`

const example = `
# A folder that agents may use, by action:
#
# folder "notes" {
#   path    = "/home/me/notes"
#   actions = ["files.list", "files.read", "files.write"]
# }
#
# A host path that sandboxed code sees, read-only:
#
# toolchain "go" {
#   path = "/usr/local/go"
# }
#
# A folder of packages that sandboxed code may read, at /caches/<name>. It is never
# written there: fill it here, with your own tools, such as go mod download with
# GOMODCACHE set to it. Caches named "go" and "npm" are found by these; others say how:
#
# cache "go" {
#   path = "/srv/go-modules"
# }
#
# cache "wheels" {
#   path = "/srv/wheels"
#   env  = { PIP_FIND_LINKS = "/caches/wheels", PIP_NO_INDEX = "1" }
# }
#
# Work that waits for your own yes on this machine, whatever the server was told:
# bivouac-edge approvals shows what waits. It can be held over files.list, files.read,
# files.write and turn; without a ttl a question waits 30m, and is then denied. An
# action of an agent waits no longer than the agent's own approvals may (10m where its
# definition says nothing); a turn as long as this says:
#
# second_key "files.write" {
#   ttl = "1h"
# }
#
# No sandbox here reads packages from registries, whatever its agent names: turns
# that need one go to other machines. Without this line they may, by way of the broker:
#
# package_egress = false
#
# What this machine does for all who may use it: device actions at once, and tokens of
# turns here on a day of UTC. What is beyond waits, and explain says why:
#
# quota {
#   max_active_actions = 4
#   max_tokens_per_day = 2000000
# }
#
# Upper bounds of one sandboxed turn:
#
# limits {
#   memory_mb  = 4096
#   cpu_millis = 2000 # 1000 is one core
#   pids       = 512
#   disk_mb    = 8192
# }
#
# A folder below each cgroup hierarchy that root gave to this runner's user, where
# cgroup v1 is in use and it is not root itself:
#
# cgroup = "bivouac"
#
# Another way to the broker than the server names:
#
# broker = "broker.example.org:7402"
`

// Render is the text of edge.hcl for a policy, with the documented example.
func Render(p Policy) []byte {
	f := hclwrite.NewEmptyFile()
	body := f.Body()
	body.SetAttributeValue("slots", cty.NumberIntVal(int64(p.Slots)))
	if p.RefuseEgress {
		body.SetAttributeValue("package_egress", cty.False)
	}
	if p.Broker != "" {
		body.SetAttributeValue("broker", cty.StringVal(p.Broker))
	}
	if p.Cgroup != "" {
		body.SetAttributeValue("cgroup", cty.StringVal(p.Cgroup))
	}
	for _, d := range p.Folders {
		body.AppendNewline()
		b := body.AppendNewBlock("folder", []string{d.Name}).Body()
		b.SetAttributeValue("path", cty.StringVal(d.Path))
		var actions []cty.Value
		for _, a := range d.Actions {
			actions = append(actions, cty.StringVal(a))
		}
		b.SetAttributeValue("actions", cty.ListVal(actions))
	}
	for _, t := range p.Toolchains {
		body.AppendNewline()
		body.AppendNewBlock("toolchain", []string{t.Name}).Body().SetAttributeValue("path", cty.StringVal(t.Path))
	}
	for _, c := range p.Caches {
		body.AppendNewline()
		b := body.AppendNewBlock("cache", []string{c.Name}).Body()
		b.SetAttributeValue("path", cty.StringVal(c.Path))
		env := map[string]cty.Value{}
		for _, kv := range c.Env {
			name, value, _ := strings.Cut(kv, "=")
			env[name] = cty.StringVal(value)
		}
		if len(env) > 0 {
			b.SetAttributeValue("env", cty.MapVal(env))
		}
	}
	if p.Quota != (Quota{}) {
		body.AppendNewline()
		b := body.AppendNewBlock("quota", nil).Body()
		if p.Quota.ActiveActions > 0 {
			b.SetAttributeValue("max_active_actions", cty.NumberIntVal(int64(p.Quota.ActiveActions)))
		}
		if p.Quota.TokensPerDay > 0 {
			b.SetAttributeValue("max_tokens_per_day", cty.NumberIntVal(p.Quota.TokensPerDay))
		}
	}
	for _, k := range p.SecondKeys {
		body.AppendNewline()
		body.AppendNewBlock("second_key", []string{k.Over}).Body().SetAttributeValue("ttl", cty.StringVal(plainly(k.TTL)))
	}
	return append(append([]byte(header), hclwrite.Format(f.Bytes())...), example...)
}

// FolderFlag reads name=path with an optional :r or :rw, as join takes it.
// Reading is the default, and a relative path is meant from here.
func FolderFlag(flag string) (device.Folder, error) {
	name, path, ok := strings.Cut(flag, "=")
	if !ok || name == "" || path == "" {
		return device.Folder{}, protocol.Errorf(protocol.CodeInvalidArgument, "--allow-folder %q: write name=/path, with :rw at its end to allow writing", flag)
	}
	f := device.Folder{Name: name, Actions: []string{device.List, device.Read}}
	if rest, ok := strings.CutSuffix(path, ":rw"); ok {
		path, f.Actions = rest, append(f.Actions, device.Write)
	} else {
		path = strings.TrimSuffix(path, ":r")
		if i := strings.LastIndexByte(path, ':'); i >= 0 && i < len(path)-1 && strings.Trim(path[i+1:], "rwxo") == "" {
			if _, err := os.Stat(path); err != nil { // or it is the folder's name
				return device.Folder{}, protocol.Errorf(protocol.CodeInvalidArgument, "--allow-folder %q: it ends with %s: :r is for reading, :rw also for writing, and there is nothing else", flag, path[i:])
			}
		}
	}
	abs, err := filepath.Abs(path)
	f.Path = abs
	return f, err
}

// KeyFlag reads the work that a second key is held over, as join takes it.
func KeyFlag(flag string) SecondKey { return SecondKey{Over: flag, TTL: defaultKeyTTL} }

// ToolchainFlag reads name=path.
func ToolchainFlag(flag string) (Toolchain, error) {
	name, path, ok := strings.Cut(flag, "=")
	if !ok || name == "" || path == "" {
		return Toolchain{}, protocol.Errorf(protocol.CodeInvalidArgument, "--toolchain %q: write name=/path", flag)
	}
	abs, err := filepath.Abs(path)
	return Toolchain{Name: name, Path: abs}, err
}

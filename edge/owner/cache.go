package owner

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"bivouac/edge/device"
)

// Cache is a folder of packages that its owner filled, on the host and by own
// tools. Every sandbox may read it; none may write it, so that one turn cannot give
// code to the next.
type Cache struct {
	Name string
	Path string
	// Env are variables that make package tools find it, as NAME=value, sorted.
	Env []string
}

// CachesInside is where sandboxed code finds caches, each by its name.
const CachesInside = "/caches"

var cacheSchema = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "path", Required: true}, {Name: "env"}}}

// knownCaches are the variables of caches whose block has none. Both tools copy what
// they use to a place of the sandbox's own, and check it against the project's lock
// file.
var knownCaches = map[string][]string{
	// A module cache (GOMODCACHE): its download folder is a module proxy.
	"go": {"GOFLAGS=-modcacherw", "GOPROXY=file://" + CachesInside + "/go/cache/download"},
	// A cache of npm (npm_config_cache), which takes one that it cannot write to.
	"npm": {"npm_config_cache=" + CachesInside + "/npm", "npm_config_offline=true"},
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// ownEnv are the sandbox's variables; LD_ would make a package cache one of programs.
var ownEnv = []string{"PATH", "HOME", "LANG", "TMPDIR", "TERM", "USER"}

// CacheNames are advertised to the server, sorted.
func (p Policy) CacheNames() []string {
	var out []string
	for _, c := range p.Caches {
		out = append(out, c.Name)
	}
	slices.Sort(out)
	return out
}

func (r *reader) cache(b *hcl.Block, p *Policy, private []string) {
	k := Cache{Name: b.Labels[0]}
	c, diags := b.Body.Content(cacheSchema)
	r.note(diags)
	r.name(b, "cache", slices.ContainsFunc(p.Caches, func(o Cache) bool { return o.Name == k.Name }))
	text(r, c, "path", &k.Path)
	if k.Path != "" {
		at := c.Attributes["path"].Range
		r.directory(at, "cache "+k.Name, k.Path)
		r.readOnlyPath(at, "cache "+k.Name, k.Path, private)
	}
	k.Env = slices.Clone(knownCaches[k.Name])
	if v, ok := r.value(c, "env", cty.Map(cty.String)); ok {
		k.Env = r.env(c.Attributes["env"].Range, k.Name, v.AsValueMap())
	}
	p.Caches = append(p.Caches, k)
}

func (r *reader) env(at hcl.Range, cache string, all map[string]cty.Value) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch v := all[name]; {
		case !envName.MatchString(name):
			r.say(at, "cache %s: %q is no name of a variable", cache, name)
		case slices.Contains(ownEnv, name), strings.HasPrefix(name, "LD_"):
			r.say(at, "cache %s: %s is the sandbox's own", cache, name)
		case v.IsNull(), strings.ContainsRune(v.AsString(), 0):
			r.say(at, "cache %s: %s needs a value", cache, name)
		default:
			out = append(out, name+"="+v.AsString())
		}
	}
	return out
}

// unwritten refuses caches into which agents may write by device actions.
func (r *reader) unwritten(p Policy, at map[string]hcl.Range) {
	for _, c := range p.Caches {
		for _, f := range p.Folders {
			if slices.Contains(f.Actions, device.Write) && c.Path != "" && f.Path != "" && (inside(c.Path, f.Path) || inside(f.Path, c.Path)) {
				r.say(at[c.Name], "cache %s: agents may write to it by the folder %q: whatever they put there would be every turn's code", c.Name, f.Name)
			}
		}
	}
}

// cgroup names the folder below each cgroup hierarchy that root gave to this runner.
func (r *reader) cgroup(at hcl.Range, name string) {
	if path.IsAbs(name) || path.Clean(name) != name || name == "." || strings.HasPrefix(name, "..") || !cgroupPattern.MatchString(name) {
		r.say(at, "cgroup: %q is no folder below a cgroup hierarchy: write its name without /sys/fs/cgroup", name)
	}
}

var cgroupPattern = regexp.MustCompile(`^[A-Za-z0-9_.@/-]{1,200}$`)

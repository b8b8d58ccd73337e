package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"

	"bivouac/edge/device"
	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/facts"
)

var (
	fileSchema = &hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "slots"}, {Name: "broker"}, {Name: "cgroup"}, {Name: "package_egress"}},
		Blocks: []hcl.BlockHeaderSchema{{Type: "folder", LabelNames: []string{"name"}}, {Type: "toolchain", LabelNames: []string{"name"}},
			{Type: "cache", LabelNames: []string{"name"}}, {Type: "second_key", LabelNames: []string{"work"}}, {Type: "limits"}, {Type: "quota"}},
	}
	folderSchema = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "path", Required: true}, {Name: "actions", Required: true}}}
	toolSchema   = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "path", Required: true}}}
	quotaSchema  = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "max_active_actions"}, {Name: "max_tokens_per_day"}}}
	limitsSchema = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "memory_mb"}, {Name: "cpu_millis"}, {Name: "pids"}, {Name: "disk_mb"}}}
)

// Load reads and validates a file. A missing file is the default policy. private
// are directories that no path may open.
func Load(name string, private ...string) (Policy, error) {
	src, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	if err != nil {
		return Policy{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the owner's policy cannot be read: %w", err)
	}
	if err := filemode.Policy(name); err != nil {
		return Policy{}, err
	}
	return Parse(name, src, private...)
}

// Parse is Load for text. The error lists all problems, one a line, as
// file:line: what and why.
func Parse(name string, src []byte, private ...string) (Policy, error) {
	r := &reader{}
	p := r.parse(name, src, private)
	return p, r.err(name)
}

// CheckFlags checks a policy that flags made as its file would be checked. The
// error names the flags, since nobody wrote a file.
func CheckFlags(p Policy, private ...string) error {
	r := &reader{flags: true}
	r.parse("flags", Render(p), private)
	if len(r.problems) == 0 {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "%s", strings.Join(r.problems, "\n  "))
}

func (r *reader) parse(name string, src []byte, private []string) Policy {
	file, diags := hclsyntax.ParseConfig(src, name, hcl.InitialPos)
	if r.note(diags); diags.HasErrors() {
		return Policy{}
	}
	content, diags := file.Body.Content(fileSchema)
	r.note(diags)
	p := Default()
	number(r, content, "slots", 0, 64, &p.Slots)
	if v, ok := r.value(content, "package_egress", cty.Bool); ok {
		p.RefuseEgress = v.False()
	}
	text(r, content, "broker", &p.Broker)
	if p.Broker != "" {
		r.hostPort(content.Attributes["broker"].Range, p.Broker)
	}
	text(r, content, "cgroup", &p.Cgroup)
	if p.Cgroup != "" {
		r.cgroup(content.Attributes["cgroup"].Range, p.Cgroup)
	}
	seen, caches, blocks := map[string]bool{}, map[string]hcl.Range{}, map[string]int{}
	for _, b := range content.Blocks {
		r.block = b
		if blocks[b.Type]++; blocks[b.Type] == facts.MaxNames+1 {
			r.say(b.DefRange, "there are more than %d %s blocks: a server takes no more", facts.MaxNames, b.Type)
		}
		switch b.Type {
		case "folder":
			r.folder(b, &p, private)
		case "toolchain":
			r.toolchain(b, &p, private)
		case "cache":
			caches[b.Labels[0]] = b.DefRange
			r.cache(b, &p, private)
		case "second_key":
			r.secondKey(b, &p)
		case "limits", "quota":
			if seen[b.Type] {
				r.say(b.DefRange, "there is more than one %s block: keep one", b.Type)
			}
			seen[b.Type] = true
			if b.Type == "quota" {
				r.quota(b, &p.Quota)
				continue
			}
			r.limits(b, &p.Limits)
		}
	}
	r.unwritten(p, caches)
	return p
}

// reader gathers problems.
type reader struct {
	problems []string
	block    *hcl.Block // that is read now
	flags    bool       // the text was made of flags
}

func (r *reader) say(at hcl.Range, format string, args ...any) {
	if r.flags {
		r.problems = append(r.problems, r.flag()+": "+fmt.Sprintf(format, args...))
		return
	}
	r.problems = append(r.problems, fmt.Sprintf("%s:%d: ", at.Filename, at.Start.Line)+fmt.Sprintf(format, args...))
}

// flag is what a person typed for the block that is read now.
func (r *reader) flag() string {
	switch {
	case r.block == nil:
		return "--slots"
	case r.block.Type == "toolchain":
		return "--toolchain " + r.block.Labels[0]
	case r.block.Type == "second_key":
		return "--second-key " + r.block.Labels[0]
	}
	return "--allow-folder " + r.block.Labels[0]
}

func (r *reader) note(diags hcl.Diagnostics) {
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		at := hcl.Range{}
		if d.Subject != nil {
			at = *d.Subject
		}
		r.say(at, "%s: %s", d.Summary, d.Detail)
	}
}

func (r *reader) err(name string) error {
	if len(r.problems) == 0 {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "%s has %d problem(s):\n  %s", name, len(r.problems), strings.Join(r.problems, "\n  "))
}

// value evaluates an attribute without variables or functions.
func (r *reader) value(c *hcl.BodyContent, name string, want cty.Type) (cty.Value, bool) {
	a, ok := c.Attributes[name]
	if !ok {
		return cty.NilVal, false
	}
	v, diags := a.Expr.Value(nil)
	if r.note(diags); diags.HasErrors() {
		return cty.NilVal, false
	}
	v, err := convert.Convert(v, want)
	if err != nil || v.IsNull() {
		r.say(a.Range, "%s must be %s", name, want.FriendlyName())
		return cty.NilVal, false
	}
	return v, true
}

func text(r *reader, c *hcl.BodyContent, name string, into *string) {
	if v, ok := r.value(c, name, cty.String); ok {
		*into = v.AsString()
	}
}

func number[T int | int32 | int64](r *reader, c *hcl.BodyContent, name string, low, high int64, into *T) {
	v, ok := r.value(c, name, cty.Number)
	if !ok {
		return
	}
	var n int64
	if err := gocty.FromCtyValue(v, &n); err != nil || n < low || n > high {
		r.say(c.Attributes[name].Range, "%s must be a whole number from %d to %d", name, low, high)
		return
	}
	*into = T(n)
}

func (r *reader) folder(b *hcl.Block, p *Policy, private []string) {
	f := device.Folder{Name: b.Labels[0]}
	c, diags := b.Body.Content(folderSchema)
	r.note(diags)
	r.name(b, "folder", slices.ContainsFunc(p.Folders, func(o device.Folder) bool { return o.Name == f.Name }))
	text(r, c, "path", &f.Path)
	if f.Path != "" {
		r.directory(c.Attributes["path"].Range, "folder "+f.Name, f.Path)
		r.opened(c.Attributes["path"].Range, "folder "+f.Name, f.Path)
		r.notInside(c.Attributes["path"].Range, "folder "+f.Name, f.Path, private)
	}
	if v, ok := r.value(c, "actions", cty.List(cty.String)); ok {
		for it := v.ElementIterator(); it.Next(); {
			_, a := it.Element()
			action := a.AsString()
			if !slices.Contains([]string{device.List, device.Read, device.Write}, action) {
				r.say(c.Attributes["actions"].Range, "%q is no action: %s, %s and %s are", action, device.List, device.Read, device.Write)
			}
			f.Actions = append(f.Actions, action)
		}
		if len(f.Actions) == 0 {
			r.say(c.Attributes["actions"].Range, "folder %q allows no action: name some, or remove it", f.Name)
		}
	}
	p.Folders = append(p.Folders, f)
}

func (r *reader) toolchain(b *hcl.Block, p *Policy, private []string) {
	t := Toolchain{Name: b.Labels[0]}
	c, diags := b.Body.Content(toolSchema)
	r.note(diags)
	r.name(b, "toolchain", slices.ContainsFunc(p.Toolchains, func(o Toolchain) bool { return o.Name == t.Name }))
	text(r, c, "path", &t.Path)
	if t.Path != "" {
		at := c.Attributes["path"].Range
		r.directory(at, "toolchain "+t.Name, t.Path)
		r.readOnlyPath(at, "toolchain "+t.Name, t.Path, private)
		r.insideFree(at, t)
	}
	p.Toolchains = append(p.Toolchains, t)
}

func (r *reader) limits(b *hcl.Block, l *Limits) {
	c, diags := b.Body.Content(limitsSchema)
	r.note(diags)
	var memory, disk int64
	number(r, c, "memory_mb", 64, 1<<24, &memory)
	number(r, c, "disk_mb", 64, 1<<30, &disk)
	number(r, c, "cpu_millis", 100, 1<<20, &l.CPUMillis)
	number(r, c, "pids", 16, 1<<20, &l.PIDs)
	l.MemoryBytes, l.DiskBytes = memory<<20, disk<<20
}

func (r *reader) quota(b *hcl.Block, q *Quota) {
	c, diags := b.Body.Content(quotaSchema)
	r.note(diags)
	number(r, c, "max_active_actions", 1, 1<<10, &q.ActiveActions)
	number(r, c, "max_tokens_per_day", 1, 1<<50, &q.TokensPerDay)
}

package broker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"bivouac/edge/finding"
)

// examineFile says where the broker's file, as it is now, has other blocks than this
// broker, which read them when it started.
func (b *Broker) examineFile(r *finding.Report) {
	file := b.ports.ConfigFile
	if file == "" {
		return
	}
	const restart = "restart bivouac-broker, or the bivouac dev that runs it"
	now, err := LoadConfig(file)
	if err != nil {
		r.Warn("configuration", "what this broker runs with is not in its file any more: "+err.Error(), "it does not start again with it", "edit "+file)
		return
	}
	other := differing(b.cfg, now)
	if len(other) == 0 {
		r.Fine("configuration", "%s is as it was when the broker started, but for its caps", file)
		return
	}
	mend := restart
	if left := b.leftByRestart(now); left != "" {
		mend = left
	}
	r.Warn("configuration", fmt.Sprintf("%s was changed since the broker started: %s", file, strings.Join(other, ", ")), "all but caps is read at the start; until then this broker has what was there before", mend)
}

// leftByRestart is what comes before a restart with a vault block that is new: it would
// leave behind what the keyring holds. Empty: nothing.
func (b *Broker) leftByRestart(now Config) string {
	held, ok := b.ports.Authority.(interface {
		Left() (grants, credentials int)
	})
	if !ok || now.Vault == nil {
		return ""
	}
	grants, credentials := held.Left()
	if grants+credentials == 0 {
		return ""
	}
	return fmt.Sprintf("bivouac vault check; then stop the broker, bivouac-broker vault-move --apply  (for %d grant(s) in force and %d credential(s), which a restart alone leaves behind in the keyring), and start it", grants, credentials)
}

// differing names the blocks that two configurations do not share.
func differing(then, now Config) []string {
	was, is := blocks(then), blocks(now)
	var all []string
	for name, text := range is {
		switch before, there := was[name]; {
		case !there:
			all = append(all, name+" is new")
		case before != text:
			all = append(all, name+" is another one")
		}
	}
	for name := range was {
		if _, there := is[name]; !there {
			all = append(all, name+" is gone")
		}
	}
	slices.Sort(all)
	return all
}

// blocks of a configuration but its caps, as text without the places where they stand.
func blocks(c Config) map[string]string {
	all := map[string]string{}
	if c.Vault != nil {
		all["the vault block"] = bodyText(c.Vault.Body)
	}
	if c.Consul != nil {
		all["the consul block"] = bodyText(c.Consul.Body)
	}
	for _, o := range c.OAuth2 {
		all[fmt.Sprintf("oauth2 %q", o.Name)] = unplaced(o)
	}
	for _, m := range c.Models {
		all[fmt.Sprintf("model %q", m.Name)] = unplaced(m)
	}
	for _, d := range c.Destinations {
		all[fmt.Sprintf("destination %q", d.Name)] = unplaced(d)
	}
	return all
}

// bodyText is a block that others read: its settings and blocks, in one order.
func bodyText(b hcl.Body) string {
	body, ok := b.(*hclsyntax.Body)
	if !ok {
		return ""
	}
	var all []string
	for name, a := range body.Attributes {
		value, diags := a.Expr.Value(nil)
		text, err := ctyjson.Marshal(value, value.Type())
		all = append(all, fmt.Sprintf("%s = %s %v %v", name, text, diags, err))
	}
	slices.Sort(all)
	for _, inner := range body.Blocks {
		all = append(all, fmt.Sprintf("%s %q {%s}", inner.Type, inner.Labels, bodyText(inner.Body)))
	}
	return strings.Join(all, "\n")
}

func unplaced(block any) string {
	b, err := json.Marshal(block)
	if err != nil {
		return err.Error()
	}
	var fields any
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&fields); err != nil {
		return err.Error()
	}
	b, _ = json.Marshal(withoutRange(fields)) // it came from JSON
	return string(b)
}

func withoutRange(v any) any {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "Range")
		for _, field := range v {
			withoutRange(field)
		}
	case []any:
		for _, element := range v {
			withoutRange(element)
		}
	}
	return v
}

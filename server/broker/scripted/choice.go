package scripted

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
)

// offer notes a tool of the request, with the schema of its arguments.
func (c *conversation) offer(alias string, schema json.RawMessage) {
	c.offers = append(c.offers, alias)
	var s struct {
		Properties map[string]struct {
			Enum []string `json:"enum"`
		} `json:"properties"`
	}
	if json.Unmarshal(schema, &s) != nil { // an enum of something else than texts is none to choose from
		return
	}
	for name, p := range s.Properties {
		if len(p.Enum) > 0 {
			if c.choices == nil {
				c.choices = map[string][]string{}
			}
			c.choices[alias+"."+name] = p.Enum
		}
	}
}

// chosen says whether the argument of `choice` is one of several values, and puts
// them into vars. A group of user_matches with the argument's name must be one of
// them, in upper or lower case, and gets it as it is offered.
func (w *when) chosen(vars map[string]cty.Value, c conversation) bool {
	if w.Choice == "" {
		return true
	}
	all := c.choices[w.Choice]
	if len(all) == 0 {
		return false
	}
	texts := make([]cty.Value, len(all))
	for i, one := range all {
		texts[i] = cty.StringVal(one)
	}
	vars["choices"] = cty.ListVal(texts)
	_, argument, _ := strings.Cut(w.Choice, ".")
	user, ok := vars["user"]
	if !ok || !user.Type().HasAttribute(argument) {
		return true
	}
	groups := user.AsValueMap()
	said := strings.TrimRight(strings.TrimSpace(groups[argument].AsString()), ".?!")
	i := slices.IndexFunc(all, func(one string) bool { return strings.EqualFold(one, said) })
	if i < 0 {
		return false
	}
	groups[argument] = texts[i]
	vars["user"] = cty.ObjectVal(groups)
	return true
}

// checkChoice says what is wrong with the text of `choice`.
func (w *when) checkChoice() error {
	if tool, argument, _ := strings.Cut(w.Choice, "."); w.Choice != "" && (tool == "" || argument == "") {
		return fmt.Errorf("choice = %q is no tool with its argument, such as \"files_read.machine\"", w.Choice)
	}
	return nil
}

package plan

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Script is the whole plan as commands of Consul's own command line, from nothing: to be
// reviewed, run, or taken over into something else. Run twice it fails at the policy,
// which is there then.
func (p Plan) Script() string {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n# Everything that Bivouac needs in a Consul that has none of it. An entry that is\n# there is not overwritten: -cas -modify-index 0.\nset -eu\n")
	for _, i := range p.Items {
		fmt.Fprintf(&b, "\n# %s: without it, %s\n", i.Title(), i.For)
		switch i.Kind {
		case Policy:
			heredoc(&b, "consul acl policy create -name "+i.Name+" -description Bivouac -rules -", i.Want)
		case Role:
			fmt.Fprintf(&b, "consul acl role create -name %s -description Bivouac -policy-name %s\n", i.Name, i.Want)
		default:
			body, err := json.MarshalIndent(i.body(), "", "  ")
			if err != nil {
				panic(err) // maps of texts
			}
			heredoc(&b, "consul config write -cas -modify-index 0 -", string(body)+"\n")
		}
	}
	return b.String()
}

// body of an entry that is not there yet.
func (i Item) body() map[string]any {
	if i.Kind == DefaultDeny {
		body := orNew(nil, "service-intentions", "*")
		body["Sources"] = []any{denyAll(i.Want)}
		return body
	}
	body := orNew(nil, "service-defaults", i.Name)
	body["Protocol"] = i.Want
	return body
}

func denyAll(action string) map[string]any {
	return map[string]any{"Name": "*", "Action": action, "Type": "consul"}
}

// heredoc gives a command a text. No text of a plan has a line of only END.
func heredoc(b *strings.Builder, command, text string) {
	fmt.Fprintf(b, "%s <<'END'\n%sEND\n", command, text)
}

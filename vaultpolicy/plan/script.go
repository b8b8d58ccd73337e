package plan

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Script is the whole plan as commands of the server's own command line, from
// nothing: to be reviewed, run, or taken over into something else. Run twice it
// fails at the mounts, which are there then. namespace is where it is made; empty:
// the root.
func (p Plan) Script(namespace string) (string, error) {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n# Everything that Bivouac needs in an empty Vault or OpenBao server.\nset -eu\n")
	if namespace != "" {
		fmt.Fprintf(&b, "export VAULT_NAMESPACE=%s\n", Quote(namespace))
	}
	for _, i := range p.Items {
		fmt.Fprintf(&b, "\n# %s: without it, %s\n", i.Title(), i.For)
		if text, ok := i.Want["policy"].(string); ok && i.Kind == "policy" {
			heredoc(&b, "vault policy write "+i.Name, text)
			continue
		}
		if i.Kind == "settings of" { // a new KV mount of version 2 needs a moment
			fmt.Fprintf(&b, "until vault read %s > /dev/null 2>&1; do sleep 1; done\n", i.Path)
		}
		body, err := json.MarshalIndent(i.Body(), "", "  ")
		if err != nil {
			return "", err
		}
		heredoc(&b, "vault write "+i.Path, string(body)+"\n")
	}
	return b.String(), nil
}

// Quote a word for a shell.
func Quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// heredoc gives a command a text. No text of a plan has a line of only END.
func heredoc(b *strings.Builder, command, text string) {
	fmt.Fprintf(b, "%s - <<'END'\n%sEND\n", command, text)
}

// Body is what is written to Path where nothing is.
func (i Item) Body() map[string]any { return i.body(true) }

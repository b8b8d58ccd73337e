//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"bivouac/server/api/apiv1"
)

// The turns of the storm, one prompt each, completed by a tag: "keep" has an effect
// of each recovery class in the server, "note" works on the person's machine, "tell"
// speaks for a while, and "code" and "line" run on the runner.

const stormAgents = `
agent "keeper" {
  profile       = "enterprise"
  placement     = "service"
  data_boundary = "internal"
  instructions  = "You keep the books."
  model { route = "scripted" }
  device_tools = ["files.list", "files.read", "files.write"]
` + killPost + killPut + stormParcel + killLease + `
}
`

// stormParcel can be asked about.
const stormParcel = `
  tool "parcel" {
    kind        = "http"
    description = "Sends a parcel."
    destination = "ledger"
    method      = "POST"
    path        = "/v1/parcels"
    body        = ["id"]
    effect      = "R3"
    recovery    = "inspectable"
    approval    = "never"
    lookup {
      path     = "/v1/parcels/{id}"
      contains = "parcel {id}"
    }
    input = {
      type = "object", additionalProperties = false, required = ["id"]
      properties = { id = { type = "string", minLength = 1 } }
    }
  }
`

// stormScript is the model.
var stormScript = stormRules("keep", "The books are kept.",
	`call "post" { arguments = { id = "${user.tag}-post" } }`,
	`call "put" { arguments = { id = "${user.tag}-put" } }`,
	`call "parcel" { arguments = { id = "${user.tag}-parcel" } }`,
	`call "files_write" { arguments = { path = "notes/${user.tag}.txt", content = "${user.tag}-file\n" } }`,
) + stormRules("note", "It is noted.",
	`call "files_read" { arguments = { path = "notes/shared" } }`,
	`call "files_write" { arguments = { path = "notes/${user.tag}.txt", content = "${user.tag}-file\n" } }`,
	`call "put" { arguments = { id = "${user.tag}-put" } }`,
) + stormTell + stormRules("code", "The code is changed.",
	`call "shell" { arguments = { command = "echo ${user.tag}-line1 >> log.txt" } }`,
	`call "post" { arguments = { id = "${user.tag}-post" } }`,
	`call "shell" { arguments = { command = "echo ${user.tag}-line2 >> log.txt" } }`,
) + stormRules("line", "The line is there.",
	`call "shell" { arguments = { command = "echo ${user.tag}-line1 >> log.txt" } }`,
)

// stormTell speaks for a second or two, for whoever reads along or breaks in.
var stormTell = `
rule "tell" {
  when { user_contains = "tell" }
  text        = "` + strings.Repeat("This takes a while to say. ", 10) + `"
  chunk_delay = "40ms"
  chunk_runes = 8
}
`

// stormRules make a turn of these calls, one after the other, and of a last word.
func stormRules(kind, last string, calls ...string) string {
	var b strings.Builder
	for i, step := range append(calls, `text = "`+last+`"`) {
		fmt.Fprintf(&b, `
rule "%[1]s, step %[2]d" {
  when {
    user_matches = "^%[1]s (?P<tag>\\S+)"
    results      = %[2]d
  }
  %[3]s
}
`, kind, i, step)
	}
	return b.String()
}

// stormEffect names the effect of an action; empty for one that only reads, and for
// a line of code, which shows in the patch alone.
func stormEffect(a *apiv1.Action) string {
	var args struct{ ID, Path string }
	if json.Unmarshal([]byte(a.GetArguments()), &args) != nil {
		return ""
	}
	switch a.GetTool() {
	case "http:post", "http:put", "http:parcel":
		return args.ID
	case "files.write":
		return strings.TrimSuffix(filepath.Base(args.Path), ".txt") + "-file"
	}
	return ""
}

//go:build linux

package e2e

// The two turns of the kill matrix. Every effect has an id of its own, made of the
// cell's tag, so that the outside world can be asked what happened and how often.
//
// The personal turn runs in the server: a folder is listed on the machine, an
// opaque POST and an idempotent one leave through the broker, and a file is
// written after an approval. The coding turn runs on the runner: two commands in
// the sandbox append a line each, and between them an opaque POST goes from the
// worker through the server and the broker.

// Leases are short: what is lost is found within seconds.
const (
	killKeeper = keeperHead + killPost + killPut + killLease + "}\n"
	mcpKeeper  = keeperHead + mcpPost + killPut + killLease + "}\n"
)

const keeperHead = `
agent "keeper" {
  profile       = "enterprise"
  placement     = "service"
  data_boundary = "internal"
  instructions  = "You keep the books."
  model { route = "scripted" }
  device_tools = ["files.list", "files.write"]
`

const killCoder = `
agent "coder" {
  profile       = "enterprise"
  placement     = "runner"
  trust         = "trusted"
  data_boundary = "internal"
  instructions  = "You change code."
  model { route = "scripted" }
  sandbox_tools = ["read", "write", "list", "search", "shell"]
` + killPost + killLease + `
}
`

const killLease = `
  lease {
    authority_ttl = "2s"
    retention     = "4s"
  }
`

// post cannot be repeated and cannot be asked about: an answer that is lost leaves
// an unknown outcome.
const killPost = `
  tool "post" {
    kind        = "http"
    description = "Posts an entry."
    destination = "ledger"
    method      = "POST"
    path        = "/v1/post"
    body        = ["id"]
    effect      = "R3"
    recovery    = "opaque"
    approval    = "never"
    input = {
      type = "object", additionalProperties = false, required = ["id"]
      properties = { id = { type = "string", minLength = 1 } }
    }
  }
`

// mcpPost is the same effect by a tool of an MCP server.
const mcpPost = `
  tool "post" {
    kind        = "mcp"
    description = "Posts an entry."
    destination = "tickets"
    tool        = "post"
    effect      = "R3"
    recovery    = "opaque"
    approval    = "never"
    input = {
      type = "object", additionalProperties = false, required = ["id"]
      properties = { id = { type = "string", minLength = 1 } }
    }
  }
`

// put may be sent again under its key.
const killPut = `
  tool "put" {
    kind               = "http"
    description        = "Puts an entry, once a key."
    destination        = "ledger"
    method             = "POST"
    path               = "/v1/put"
    body               = ["id"]
    credential         = "ledger"
    idempotency_header = "Idempotency-Key"
    effect             = "R3"
    recovery           = "idempotent"
    approval           = "never"
    input = {
      type = "object", additionalProperties = false, required = ["id"]
      properties = { id = { type = "string", minLength = 1 } }
    }
  }
`

// Prompts, completed by the cell's tag.
const (
	killPersonal = "keep the books "
	killCoding   = "change the code "
	killMore     = "post one more for " // the next turn of a personal session
	killLine     = "add one line for "  // the next turn of a coding session
	killRepeat   = "post it again for " // repeats the post of the first turn
)

const killScript = `
rule "look" {
  when {
    user_contains = "keep the books"
    results       = 0
  }
  text = "I look at the notes first, and then I post."
  call "files_list" { arguments = { path = "notes" } }
}
rule "post" {
  when {
    user_matches = "keep the books (?P<tag>\\S+)"
    results      = 1
  }
  text = "Now the entry that cannot be repeated."
  call "post" { arguments = { id = "${user.tag}-post" } }
}
rule "put" {
  when {
    user_matches = "keep the books (?P<tag>\\S+)"
    results      = 2
  }
  text = "Now the entry that can be repeated."
  call "put" { arguments = { id = "${user.tag}-put" } }
}
rule "write" {
  when {
    user_matches = "keep the books (?P<tag>\\S+)"
    results      = 3
  }
  text = "I note it in a file."
  call "files_write" { arguments = { path = "notes/${user.tag}.txt", content = "${user.tag}-file\n" } }
}
rule "kept" {
  when {
    user_contains = "keep the books"
    results       = 4
  }
  text = "The books are kept."
}

rule "first line" {
  when {
    user_matches = "change the code (?P<tag>\\S+)"
    results      = 0
  }
  text = "I append the first line to the log."
  call "shell" { arguments = { command = "echo ${user.tag}-line1 >> log.txt" } }
}
rule "announce" {
  when {
    user_matches = "change the code (?P<tag>\\S+)"
    results      = 1
  }
  text = "I announce it outside."
  call "post" { arguments = { id = "${user.tag}-post" } }
}
rule "second line" {
  when {
    user_matches = "change the code (?P<tag>\\S+)"
    results      = 2
  }
  text = "I append the second line to the log."
  call "shell" { arguments = { command = "echo ${user.tag}-line2 >> log.txt" } }
}
rule "changed" {
  when {
    user_contains = "change the code"
    results       = 3
  }
  text = "The code is changed."
}

rule "one more" {
  when {
    user_matches = "post one more for (?P<tag>\\S+)"
    results      = 0
  }
  call "post" { arguments = { id = "${user.tag}-next" } }
}
rule "one line" {
  when {
    user_matches = "add one line for (?P<tag>\\S+)"
    results      = 0
  }
  call "shell" { arguments = { command = "echo ${user.tag}-next >> log.txt" } }
}
rule "the same again" {
  when {
    user_matches = "post it again for (?P<tag>\\S+)"
    results      = 0
  }
  call "post" { arguments = { id = "${user.tag}-post" } }
}
rule "done" {
  when { results = 1 }
  text = "Done."
}
`

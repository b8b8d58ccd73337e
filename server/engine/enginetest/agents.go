package enginetest

import "strings"

// Gateway tools of every class of effect and of recovery that the engine treats
// differently.
const (
	ToolSend = `  tool "send" {
    kind        = "http"
    description = "Sends a message."
    destination = "mail"
    method      = "POST"
    path        = "/send"
    body        = ["text"]
    effect      = "R3"
    recovery    = "opaque"
    input = { type = "object", required = ["text"], properties = { text = { type = "string" } } }
  }
`
	ToolOrder = `  tool "order" {
    kind        = "http"
    description = "Orders once."
    destination = "shop"
    method      = "POST"
    path        = "/order"
    body        = ["item"]
    idempotency_header = "Idempotency-Key"
    effect      = "R1"
    recovery    = "idempotent"
    input = { type = "object", required = ["item"], properties = { item = { type = "string" } } }
  }
`
	ToolNote = `  tool "note" {
    kind        = "http"
    description = "Writes a note that can be taken back."
    destination = "notes"
    method      = "POST"
    path        = "/note"
    body        = ["text"]
    effect      = "R1"
    recovery    = "opaque"
    input = { type = "object", required = ["text"], properties = { text = { type = "string" } } }
  }
`
)

// Assistant is a personal agent with device actions, an http read, an outbound
// http tool that is opaque, and one that is idempotent.
const Assistant = `
agent "assistant" {
  profile       = "personal"
  data_boundary = "personal"
  instructions  = "You are a test."
  model { route = "scripted" }
  device_tools = ["files.list", "files.read", "files.write"]

  tool "forecast" {
    kind        = "http"
    description = "Today's forecast."
    destination = "weather"
    method      = "GET"
    path        = "/forecast?city={city}"
    credential  = "weather-token"
    effect      = "R0"
    recovery    = "idempotent"
    input = { type = "object", required = ["city"], properties = { city = { type = "string" } } }
  }
` + ToolSend + ToolOrder + ToolNote + `
  limits    { max_queued = 3 }
  approvals { ttl = "10m" }
  lease     { 
    authority_ttl = "15s"
    retention     = "1m"
  }
}
`

// Coder is an agent whose turns run on a runner.
const Coder = `
agent "coder" {
  profile       = "coding"
  placement     = "runner"
  data_boundary = "internal"
  instructions  = "You are a test."
  model { route = "scripted" }
  device_tools  = ["files.read", "files.write"]
  sandbox_tools = ["read", "write", "shell"]
` + ToolNote + `  lease {
    authority_ttl = "15s"
    retention     = "1m"
  }
}
`

// CoderOwn is Coder with an allocation of its own for each turn.
var CoderOwn = strings.Replace(Coder, `placement     = "runner"`, "placement     = \"runner\"\n  allocation    = \"own\"", 1)

package harness_test

import (
	"time"

	"bivouac/test/harness"
)

// Lease of the agents below: a profile with short durations.
const (
	ttl       = 6 * time.Second
	retention = 20 * time.Second
)

// coder works in a sandbox on a runner.
const coder = `
agent "coder" {
  profile       = "coding"
  data_boundary = "personal"
  instructions  = "You change code."
  model { route = "` + harness.Route + `" }
  sandbox_tools = ["read", "write", "list", "search", "shell"]
  lease {
    authority_ttl = "6s"
    retention     = "20s"
  }
  limits {
    place_within = "5m"
    max_queued   = 3
  }
}
`

// forecastTool is an http tool with a credential.
const forecastTool = `  tool "forecast" {
    kind        = "http"
    description = "Today's weather in a city."
    destination = "` + harness.Destination + `"
    method      = "GET"
    path        = "/v1/forecast?city={city}"
    credential  = "` + harness.ToolCredential + `"
    idempotency_header = "` + harness.IdempotencyHeader + `"
    effect      = "R0"
    recovery    = "idempotent"
    input = {
      type = "object", additionalProperties = false, required = ["city"]
      properties = { city = { type = "string", minLength = 1 } }
    }
  }
`

// assistant reads and writes files on its person's machine and calls a tool.
const assistant = `
agent "assistant" {
  profile       = "personal"
  data_boundary = "personal"
  instructions  = "You help."
  model { route = "` + harness.Route + `" }
  device_tools  = ["files.list", "files.read", "files.write"]
` + forecastTool + `  limits { max_queued = 2 }
}
`

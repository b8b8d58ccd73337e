package sim

import (
	"fmt"

	"bivouac/server/engine/enginetest"
)

// Agents of the run. Their tools have every class of effect and of recovery that
// the engine treats differently.
const gatewayTools = "\n" + enginetest.ToolNote + enginetest.ToolOrder

const assistant = `
agent "assistant" {
  profile       = "personal"
  data_boundary = "personal"
  instructions  = "You are simulated."
  model { route = "scripted" }
  device_tools = ["files.read", "files.write"]
  tool "forecast" {
    kind        = "http"
    description = "Today's forecast."
    destination = "weather"
    method      = "GET"
    path        = "/forecast?city={city}"
    effect      = "R0"
    recovery    = "idempotent"
    input = { type = "object", required = ["city"], properties = { city = { type = "string" } } }
  }
` + enginetest.ToolSend + gatewayTools + `
  limits { 
    max_queued   = 8
    max_cost_usd = %[1]s
    max_wall     = "20m"
  }
  approvals { 
    ttl       = "%[2]s"
    on_denied = "%[3]s"
  }
  lease { 
    authority_ttl = "15s"
    retention     = "1m"
  }
}
`

const coder = `
agent "coder" {
  profile       = "coding"
  placement     = "runner"
  data_boundary = "internal"
  instructions  = "You are simulated."
  model { route = "scripted" }
  device_tools  = ["files.read"]
  sandbox_tools = ["write", "shell"]
` + enginetest.ToolSend + gatewayTools + `
  limits { 
    max_queued   = 8
    max_cost_usd = %[1]s
    max_wall     = "20m"
  }
  approvals { 
    ttl       = "%[2]s"
    on_denied = "%[3]s"
  }
  lease { 
    authority_ttl = "15s"
    retention     = "1m"
  }
}
`

func (p plan) agents() []string {
	return []string{
		fmt.Sprintf(assistant, p.budget, p.approvals, p.onDenied),
		fmt.Sprintf(coder, p.budget, p.approvals, p.onDenied),
	}
}

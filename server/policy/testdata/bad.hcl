agent "Bad Name" {
  profile   = "personal"
  placement = "runner"
  colour    = "blue"

  model {
    max_output_tokens = "many"
  }

  device_tools = ["files.read", "files.rm"]

  tool "post" {
    kind       = "http"
    credential = "key"
    method     = "POST"
    path       = "no-slash/{id}"
    effect     = "R9"
    recovery   = "idempotent"
    input      = { type = "object" }
  }

  limits {
    max_wall      = "forever"
    max_tokens    = 99999999999
    max_tool_call = 5
  }
}

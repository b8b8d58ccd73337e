// Package policy holds what may be done: agent definitions, profiles, the
// snapshot that activation freezes, the accepted set of tools, approval rules
// and the digests that approvals bind. It is pure: HCL and JSON come in as
// bytes, decisions go out as values.
//
// It guarantees that authority only narrows on its way down (INV-10) and that
// nothing falls back to a weaker placement, provider or credential (INV-11).
// It refuses to fetch, store or remember anything.
//
// The records on which authority stands live here too, one file a noun, because
// decisions are made of them and the store keeps them: Tenant, Principal and Instance
// (principal.go), Definition, Grant, Floor (the one form of revocation), Slice, Artifact
// and Cleanup. They are plain rows: their rules are the engine's and the store's.
//
// # The form of a definition
//
// A file holds one agent block. test/demo/testdata/assistant.hcl and cmd/bivouac/cli/defaults/coder.hcl
// are whole examples; everything that has a default may be left out.
//
//	agent "assistant" {
//	  profile       = "personal"     # personal (default), coding, enterprise
//	  placement     = "service"      # service, runner; by profile
//	  data_boundary = "personal"     # required; the model route must admit it
//	  allocation    = "shared"       # shared (default), own: each turn has the sandbox's limits
//	                                 # of its node to itself, as a task that Nomad starts there;
//	                                 # place_within is 15m then, where limits say nothing
//	  trust         = "untrusted"    # untrusted (default), trusted
//	  adapter       = "native"       # native (default), scripted
//	  runners       = ["laptop"]     # names or ids; absent: any bound runner
//	  instructions  = "…"            # required; the only system text
//
//	  model { route = "main"  max_output_tokens = 4096 }
//
//	  device_tools  = ["files.list", "files.read", "files.write"]
//	  sandbox_tools = ["read", "write", "list", "search", "shell"]
//	  egress        = ["go-proxy"]   # destinations with an egress block in the broker's file
//
//	  tool "forecast" {              # one block a tool
//	    kind        = "http"         # or "device", to set approval of a fixed one
//	    alias       = "forecast"     # default: the label
//	    description = "…"            # required
//	    destination = "weather"      # required; a name in the broker's file
//	    method      = "GET"
//	    path        = "/v1/forecast?city={city}"  # {…}: required arguments
//	    body        = ["text"]       # arguments that form a JSON body
//	    credential  = "weather-token"
//	    idempotency_header = "Idempotency-Key"
//	    timeout     = "30s"
//	    effect      = "R0"           # required: R0 R1 R2 R3 R4
//	    recovery    = "idempotent"   # required: idempotent, inspectable, opaque
//	    lookup { path = "/v1/orders/{id}"  contains = "{id}" }  # inspectable: does it show there?
//	    approval    = "never"        # always, never; absent: by effect
//	    input       = { type = "object", … }      # required; JSON Schema 2020-12
//	    output      = { … }
//	  }
//
//	  tool "tickets.search" {        # description, effect, approval … as above
//	    kind          = "mcp"
//	    destination   = "tickets"    # with an mcp block in the broker's file
//	    tool          = "search"     # exact name at the server
//	    schema_digest = "sha256:…"   # of the server's input schema; absent: of input
//	    recovery      = "opaque"     # or idempotent; nothing is looked up
//	    input         = { … }        # what the model is offered
//	  }
//
//	  tool "shell" {                 # instead of its name in sandbox_tools
//	    kind        = "sandbox"
//	    recovery    = "inspectable"
//	    inspector   = "sh tools/released"  # 0: the interrupted call happened, 10: it did not; else nobody knows
//	  }
//
//	  limits    { max_model_calls max_tool_calls max_corrections max_tokens
//	              max_cost_usd max_wall max_result_bytes max_queued queue_ttl
//	              place_within session_idle session_max }
//	  sandbox   { boundary memory cpu_millis pids disk exec_timeout output }
//	  lease     { authority_ttl retention }
//	  approvals { ttl on_denied }    # on_denied: continue (default), fail
//	}
//
// Durations are text such as "90s", sizes numbers or text such as "512MiB". A
// value above the profile's ceiling is refused: enterprise lets a question wait for
// a day and a session live for 30 days, the others for 7 and 365. What a server's own
// limits say narrows further.
//
// # Effects and recoveries
//
// effect says whom a call concerns, and so whether a person is asked. It is the word of
// whoever applies the definition, for a request, an MCP tool and a command alike: nothing
// about a POST or a command line shows that it only reads. A DELETE is R4. recovery says
// whether a call may be made again whose answer was lost, and that is not a word alone: a
// POST or PATCH is idempotent only with an idempotency_header, GET, HEAD, PUT and DELETE by
// their method (RFC 9110, 9.2.2); a command on a host only where broker.hcl says so or its
// run has {idempotency_key}. Of an MCP tool nothing else than the definition can say it.
//
// # Inspectors
//
// An inspector runs in the next attempt's sandbox, among the files from before the
// call, and finds there or elsewhere (a registry, a package cache) what the call in
// BIVOUAC_CALL has done. Only 10 says that it did not happen: 1, 2, 126 and 127 are what
// shells and their tools end with when anything fails, and prove nothing. So "|| exit 10"
// behind a command would be wrong, and tools/released may be:
//
//	#!/bin/sh
//	status=$(curl -s -o /dev/null -w '%{http_code}' "https://registry.example/app/$(cat VERSION)") || exit 2
//	case $status in 200) exit 0 ;; 404) exit 10 ;; esac
//	exit 2
//
// # Approvals
//
// R0 and R1 run by themselves; R2, R3 and R4 ask a person. A tool may ask always.
// It may ask never as far as its profile goes: R1 in personal and coding, R3 in
// enterprise, where definitions are reviewed before they are applied. R4 always
// asks.
package policy

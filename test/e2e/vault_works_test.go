//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
)

// upstreamKey is what the tools' upstream asks for.
const upstreamKey = "upstream-key-of-the-matrix"

// endedTools reach the upstream, each in its own way.
const endedTools = tickTool + `
  tool "search" {
    kind        = "mcp"
    description = "Finds tickets."
    destination = "tickets"
    credential  = "tickets"
    tool        = "search"
    effect      = "R0"
    recovery    = "idempotent"
    input       = { type = "object", additionalProperties = false }
  }
  tool "send" {
    kind        = "http"
    description = "Sends a letter."
    destination = "clock"
    method      = "POST"
    path        = "/send"
    credential  = "clock"
    effect      = "R3"
    recovery    = "opaque"
    approval    = "always"
    input       = { type = "object", additionalProperties = false }
  }
`

// endedAgents are the agents of the works, by name, so that each has a grant of its
// own.
func endedAgents(works []work) []string {
	service := revokeService + "DEVICE" + endedTools + "}\n"
	all := []string{strings.NewReplacer("NAME", "bystander", "DEVICE", "").Replace(service)}
	for _, w := range works {
		source, device := service, ""
		switch w.name {
		case "sandboxed command":
			source = revokeRunner
		case "device action":
			device = `  device_tools = ["files.list"]` + "\n"
		}
		all = append(all, strings.NewReplacer("NAME", w.agent, "DEVICE", device).Replace(source))
	}
	return all
}

// endedScript keeps each work going for longer than any end takes: a stream of
// minutes, calls that come to no limit of their turn's, and a command that ignores
// signals.
var endedScript = minutesOf("talk long", "100ms") + minutesOf("stand by", "200ms") + commandRule + `
rule "greet" {
  when { user_contains = "say hello" }
  text = "Hello."
}
rule "tick" {
  when { user_contains = "tick for ever" }
  delay = "150ms"
  call "tick" { arguments = {} }
  call "tick" { arguments = {} }
}
rule "search" {
  when { user_contains = "search for ever" }
  delay = "150ms"
  call "search" { arguments = {} }
}
rule "send" {
  when { user_contains = "send it" }
  call "send" { arguments = {} }
}
rule "look" {
  when { user_contains = "look for ever" }
  delay = "150ms"
  call "files_list" { arguments = { path = "notes" } }
}
`

// work is something that a grant carries when it ends.
type work struct {
	name, agent, prompt string
	rule                string // of the model's script
	upstream            string // what it asks the upstream for; empty: nothing
	machine             bool   // it needs one
}

var (
	idle     = work{name: "idle", agent: "idler", prompt: "say hello", rule: "greet"}
	stream   = work{name: "model stream", agent: "talker", prompt: "talk long", rule: "talk long"}
	httpTool = work{name: "http tool", agent: "caller", prompt: "tick for ever", rule: "tick", upstream: "tick"}
	mcpTool  = work{name: "MCP call", agent: "searcher", prompt: "search for ever", rule: "search", upstream: "mcp"}
	command  = work{name: "sandboxed command", agent: "worker", prompt: "work long", rule: "sleep", machine: true}
	device   = work{name: "device action", agent: "looker", prompt: "look for ever", rule: "look", machine: true}
	approval = work{name: "pending approval", agent: "sender", prompt: "send it", rule: "send", upstream: "send"}
)

// upstream of all tools: it notes when it was asked for what, by whom holds its key.
type upstream struct {
	*httptest.Server
	t  *testing.T
	mu sync.Mutex // guards below
	at map[string][]time.Time
}

func newUpstream(t *testing.T) *upstream {
	u := &upstream{t: t, at: map[string][]time.Time{}}
	tickets := sdk.NewServer(&sdk.Implementation{Name: "tickets", Version: "1"}, nil)
	tickets.AddTool(&sdk.Tool{Name: "search", InputSchema: json.RawMessage(`{"additionalProperties":false,"type":"object"}`)},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "none"}}}, nil
		})
	mux := http.NewServeMux()
	mux.Handle("/mcp", u.noting("mcp", sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return tickets }, &sdk.StreamableHTTPOptions{Stateless: true})))
	for _, what := range []string{"tick", "send"} {
		mux.Handle("/"+what, u.noting(what, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"done":true}`)
		})))
	}
	u.Server = httptest.NewServer(mux)
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) noting(what string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		if r.Header.Get("Authorization") != "Bearer "+upstreamKey {
			u.t.Errorf("%s was asked for without its credential", what)
			http.Error(w, "no key", http.StatusUnauthorized)
			return
		}
		u.mu.Lock()
		u.at[what] = append(u.at[what], now)
		u.mu.Unlock()
		h.ServeHTTP(w, r)
	})
}

// since a time, when something was asked for.
func (u *upstream) since(what string, begun time.Time) []time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(u.at[what]), begun.After)
}

// last time that something was asked for; zero: never.
func (u *upstream) last(what string) (last time.Time) {
	if all := u.since(what, time.Time{}); len(all) > 0 {
		last = all[len(all)-1]
	}
	return last
}

func (u *upstream) destinations() []stack.Destination {
	return []stack.Destination{{Name: "clock", URL: u.URL, Credential: upstreamKey},
		{Name: "tickets", URL: u.URL + "/mcp", Credential: upstreamKey, MCP: true}}
}

// underway starts the work of an ending and waits until it is in the middle of it.
func (c *ending) underway() {
	p := c.person
	args := []string{"--new", "--agent", c.agent}
	verb := "chat"
	if c.work == command {
		verb, args = "run", []string{"--agent", c.agent, "--workspace", p.project("working", map[string]string{"a": "a\n"})}
	}
	c.begun = time.Now()
	c.turn = p.submit(verb, c.prompt, args...)
	await(p.t, c.name+" under way", func() (err error) {
		turn := p.turn(c.turn.ID)
		if turn.GetEndedAt() != nil && c.work != idle {
			p.t.Fatalf("%s: turn %s is %s (%s): %s", c.name, c.turn.ID, turn.GetState(), turn.GetReason(), turn.GetMessage())
		}
		switch c.work {
		case idle:
			if turn.GetState() != "COMPLETED" {
				return fmt.Errorf("it is %s", turn.GetState())
			}
			return nil
		case stream:
			return answering(p.Stack, c.rule)
		case approval:
			if asked := c.asked(); len(asked) != 1 {
				return fmt.Errorf("%d approvals are asked for", len(asked))
			}
			return nil
		case command:
			c.processes, err = asleep(p.t, c.edge)
			return err
		case device:
			if n := len(turn.GetActions()); n < 3 {
				return fmt.Errorf("%d actions", n)
			}
			return nil
		default:
			if n := len(p.ends.upstream.since(c.upstream, c.begun)); n < 4 {
				return fmt.Errorf("%d requests", n)
			}
			return nil
		}
	})
}

func (c *ending) asked() []*apiv1.Approval {
	res, err := c.person.api.Approvals.ListApprovals(c.person.t.Context(), &apiv1.ListApprovalsRequest{})
	if err != nil {
		c.person.t.Fatal(err)
	}
	return res.GetApprovals()
}

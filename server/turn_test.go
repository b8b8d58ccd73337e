package server_test

import (
	"context"
	"fmt"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
	"bivouac/server/broker/protocol/brokerv1"
)

// clerk is an agent whose two tools show what waits and what nobody knows.
const clerk = `
agent "clerk" {
  profile       = "enterprise"
  data_boundary = "personal"
  instructions  = "Do what you are asked."
  model { route = "test" }
  tool "order" {
    kind = "http"
    description = "Order one thing; somebody has to allow it."
    destination = "weather"
    method = "POST"
    path = "/order"
    body = ["what"]
    effect = "R3"
    recovery = "opaque"
    approval = "always"
    input = { type = "object", additionalProperties = false, required = ["what"], properties = { what = { type = "string" } } }
  }
  tool "post" {
    kind = "http"
    description = "Post one thing; its answer is lost on the way."
    destination = "weather"
    method = "POST"
    path = "/post"
    body = ["what"]
    effect = "R3"
    recovery = "opaque"
    approval = "never"
    input = { type = "object", additionalProperties = false, required = ["what"], properties = { what = { type = "string" } } }
  }
}
`

// obedient is a model that calls the tool a prompt begins with, and otherwise
// repeats the prompt. Every Invoke loses its answer.
func obedient(w *world) {
	w.broker.Backend.Lookup = brokerv1.CallState_CALL_STATE_SENT
	w.broker.Backend.Invoke = func(context.Context, *brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
		return nil, protocol.Errorf(protocol.CodeUnavailable, "the connection broke after sending")
	}
	w.broker.Backend.CallModel = func(_ context.Context, r *brokerv1.CallModelRequest, delta func(string) error) (*runtimev1.ModelDone, error) {
		messages := r.GetRequest().GetMessages()
		last := messages[len(messages)-1]
		block := last.GetBlocks()[len(last.GetBlocks())-1]
		prompt := block.GetText()
		name, what, _ := strings.Cut(prompt, " ")
		if last.GetRole() == runtimev1.Role_ROLE_USER && (name == "order" || name == "post") {
			return answer(runtimev1.StopReason_STOP_REASON_TOOL_CALLS, &runtimev1.Block{Kind: &runtimev1.Block_ToolCall{ToolCall: &runtimev1.ToolCall{
				Id: "call_1", Alias: name, Arguments: fmt.Sprintf(`{"what":%q}`, what),
			}}}), nil
		}
		text := "you said: " + prompt
		for _, part := range strings.SplitAfter(text, " ") {
			if err := delta(part); err != nil {
				return nil, err
			}
		}
		return answer(runtimev1.StopReason_STOP_REASON_END, &runtimev1.Block{Kind: &runtimev1.Block_Text{Text: text}}), nil
	}
}

func answer(stop runtimev1.StopReason, block *runtimev1.Block) *runtimev1.ModelDone {
	return &runtimev1.ModelDone{
		Message:    &runtimev1.Message{Role: runtimev1.Role_ROLE_ASSISTANT, Blocks: []*runtimev1.Block{block}},
		StopReason: stop, Usage: &runtimev1.Usage{InputTokens: 3, OutputTokens: 2},
	}
}

func (w *world) apply(c *client.Client, source string) *apiv1.Agent {
	w.t.Helper()
	res, err := c.Agents.ApplyAgent(w.t.Context(), &apiv1.ApplyAgentRequest{Filename: "agent.hcl", Source: source})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.GetAgent()
}

func (w *world) open(c *client.Client, agent string) string {
	w.t.Helper()
	res, err := c.Sessions.CreateSession(w.t.Context(), &apiv1.CreateSessionRequest{Agent: agent})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.GetSession().GetId()
}

func (w *world) submit(c *client.Client, session, message, prompt string) *apiv1.Turn {
	w.t.Helper()
	res, err := c.Turns.SubmitTurn(w.t.Context(), &apiv1.SubmitTurnRequest{SessionId: session, MessageId: message, Prompt: prompt})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.GetTurn()
}

func (w *world) submitWith(c *client.Client, session, message, prompt, workspace string) *apiv1.Turn {
	w.t.Helper()
	res, err := c.Turns.SubmitTurn(w.t.Context(), &apiv1.SubmitTurnRequest{SessionId: session, MessageId: message, Prompt: prompt, WorkspaceDigest: workspace})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.GetTurn()
}

// awaitTurn waits until a turn is in one of the states.
func (w *world) awaitTurn(c *client.Client, turn string, states ...string) *apiv1.Turn {
	w.t.Helper()
	var got *apiv1.Turn
	w.eventually(turn+" becomes "+strings.Join(states, " or "), func() bool {
		res, err := c.Turns.GetTurn(w.t.Context(), &apiv1.GetTurnRequest{TurnId: turn})
		if err != nil {
			w.t.Fatal(err)
		}
		got = res.GetTurn()
		for _, s := range states {
			if got.GetState() == s {
				return true
			}
		}
		if got.GetEndedAt() != nil {
			w.t.Fatalf("%s ended as %s: %s: %s", turn, got.GetState(), got.GetReason(), got.GetMessage())
		}
		return false
	})
	return got
}

// reader is an agent that reads files on its user's machine.
const reader = `
agent "reader" {
  profile       = "personal"
  data_boundary = "personal"
  instructions  = "Read what you are asked to."
  model { route = "test" }
  device_tools = ["files.read"]
}
`

// obedientDevice is a model that reads the file a prompt names and repeats what
// came back.
func obedientDevice(w *world) { w.broker.Backend.CallModel = readsAndRepeats }

func readsAndRepeats(_ context.Context, r *brokerv1.CallModelRequest, _ func(string) error) (*runtimev1.ModelDone, error) {
	messages := r.GetRequest().GetMessages()
	last := messages[len(messages)-1]
	block := last.GetBlocks()[len(last.GetBlocks())-1]
	if path, ok := strings.CutPrefix(block.GetText(), "read "); ok && last.GetRole() == runtimev1.Role_ROLE_USER {
		return answer(runtimev1.StopReason_STOP_REASON_TOOL_CALLS, &runtimev1.Block{Kind: &runtimev1.Block_ToolCall{ToolCall: &runtimev1.ToolCall{
			Id: "call_1", Alias: r.GetRequest().GetTools()[0].GetAlias(), Arguments: fmt.Sprintf(`{"path":%q}`, path),
		}}}), nil
	}
	return answer(runtimev1.StopReason_STOP_REASON_END, &runtimev1.Block{Kind: &runtimev1.Block_Text{Text: "it says " + block.GetToolResult().GetText()}}), nil
}

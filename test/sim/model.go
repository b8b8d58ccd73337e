package sim

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// Cost of one call of the scripted model, and what the broker reserves for it.
const (
	modelCost = 10
	modelMost = 30
)

// aliases of tools by their words in a script.
var aliases = map[string]string{
	"read": "files_read", "write": "files_write", "forecast": "forecast", "send": "send",
	"order": "order", "note": "note", "edit": "write_file", "shell": "shell",
}

// answer is the scripted model: a function of the conversation alone, so that a
// call that is made again gets the same answer. It ignores results, and so
// repeats what a careless model would repeat.
func answer(req *runtimev1.ModelRequest) *runtimev1.ModelDone {
	script, step := position(req.Messages)
	done := &runtimev1.ModelDone{StopReason: runtimev1.StopReason_STOP_REASON_END,
		Usage:   &runtimev1.Usage{InputTokens: 7, OutputTokens: 3, CostMicroUsd: modelCost},
		Message: &runtimev1.Message{Role: runtimev1.Role_ROLE_ASSISTANT}}
	say := func(b *runtimev1.Block) { done.Message.Blocks = append(done.Message.Blocks, b) }
	if step >= len(script) {
		say(&runtimev1.Block{Kind: &runtimev1.Block_Text{Text: "done"}})
		return done
	}
	done.StopReason = runtimev1.StopReason_STOP_REASON_TOOL_CALLS
	for i, words := range script[step] {
		// Ids repeat from answer to answer: they are unique within one only.
		say(&runtimev1.Block{Kind: &runtimev1.Block_ToolCall{ToolCall: toolCall("c"+strconv.Itoa(i+1), words, req.Tools)}})
	}
	return done
}

// position finds the script of the newest prompt and how many answers it had.
func position(messages []*runtimev1.Message) (script [][]string, step int) {
	for _, m := range messages {
		switch m.Role {
		case runtimev1.Role_ROLE_USER:
			text := m.Blocks[0].GetText()
			if _, plan, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(text, "plan ") {
				script, step = parse(plan), 0
			}
		case runtimev1.Role_ROLE_ASSISTANT:
			step++
		}
	}
	return script, step
}

func parse(plan string) (script [][]string) {
	if plan == "" {
		return nil
	}
	for _, a := range strings.Split(plan, "|") {
		script = append(script, strings.Split(a, ";"))
	}
	return script
}

// toolCall makes the call that the words of a script name.
func toolCall(id, words string, tools []*runtimev1.Tool) *runtimev1.ToolCall {
	w := strings.Fields(words)
	tool, machine, thing := w[0], w[1], w[2]
	args := map[string]string{}
	switch tool {
	case "read":
		args["path"] = "home/" + thing
	case "write":
		args["path"], args["content"] = "home/"+thing, w[3]
	case "edit":
		args["path"], args["content"] = thing, "edited by "+id
	case "shell":
		args["command"] = "make " + thing
	case "forecast":
		args["city"] = thing
	case "order":
		args["item"] = thing
	default:
		args["text"] = thing
	}
	for _, t := range tools {
		if t.Alias == aliases[tool] && strings.Contains(t.InputSchema, `"machine"`) {
			args["machine"] = "machine" + machine
		}
	}
	b, err := json.Marshal(args)
	if err != nil {
		panic(fmt.Sprintf("sim: arguments of %q: %v", words, err))
	}
	return &runtimev1.ToolCall{Id: id, Alias: aliases[tool], Arguments: string(b)}
}

// modelFailure is one of the ways in which a provider fails; nil: it does not.
func (s *Sim) modelFailure() error {
	if s.healed || !s.chance(s.plan.modelFails) {
		return nil
	}
	return pick(s,
		protocol.Errorf(protocol.CodeUnavailable, "the provider answers 500"),
		protocol.Errorf(protocol.CodeRateLimited, "the provider answers 429"),
		protocol.Errorf(protocol.CodeDataLoss, "the provider's answer cannot be read"))
}

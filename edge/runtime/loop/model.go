package loop

import (
	"strconv"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

const (
	// maxModelRetries of one model call: their pauses add up to 15.5 s, which
	// outlasts the restart of a broker.
	maxModelRetries = 5
	firstRetryAfter = 500 * time.Millisecond
	// maxCallID is the longest call id that is kept as the model wrote it.
	maxCallID = 128
	// textEmpty corrects an answer without text and calls.
	textEmpty = "Your last answer was empty. Answer in text, or call a tool."
)

// callModel asks for the next answer, or ends the turn by the limit that
// forbids it.
func (t turn) callModel() (*runtimev1.LoopState, []Command) {
	if limit, message := t.spent(); limit != "" {
		return t.fail(limit, message)
	}
	t.Phase = runtimev1.Phase_PHASE_MODEL
	t.ModelCalls++
	t.ModelRetries = 0
	return t.LoopState, []Command{t.request()}
}

// request is the outstanding model call. It is a function of the state alone,
// so that a resumed turn repeats exactly what it asked.
func (t turn) request() CallModel {
	return CallModel{
		Request: &runtimev1.ModelRequest{
			Model: t.Model, Messages: t.Messages, Tools: t.Tools, MaxOutputTokens: t.MaxOutputTokens,
		},
		After: retryAfter(t.ModelRetries),
	}
}

// retryAfter doubles from half a second; the first call does not wait.
func retryAfter(retries int32) time.Duration {
	if retries <= 0 {
		return 0
	}
	return firstRetryAfter << (min(retries, maxModelRetries) - 1)
}

// answered takes one whole answer of the model.
func (t turn) answered(done *runtimev1.ModelDone) (*runtimev1.LoopState, []Command) {
	t.ModelRetries = 0
	if u := done.Usage; u != nil {
		t.Usage.InputTokens += max(0, u.InputTokens)
		t.Usage.OutputTokens += max(0, u.OutputTokens)
		t.Usage.CostMicroUsd += max(0, u.CostMicroUsd)
	}
	a := read(done.Message, t.ModelCalls, t.callIDs())
	blank := strings.TrimSpace(a.text) == ""
	if len(a.calls) > 0 || !blank {
		t.append(a.message)
	}
	t.Pending = a.calls
	switch {
	case len(a.calls) > 0:
		if limit, message := t.spent(); limit != "" {
			return t.fail(limit, message)
		}
		if a.repeated {
			return t.refuseAll()
		}
		return t.nextCall()
	case done.StopReason == runtimev1.StopReason_STOP_REASON_LENGTH:
		return t.fail(ReasonMaxOutputTokens, "The model's answer was cut at the limit of output tokens.")
	case blank:
		if t.correct() {
			return t.tooManyCorrections()
		}
		t.append(textMessage(runtimev1.Role_ROLE_USER, textEmpty))
		return t.callModel()
	}
	return t.complete(a.text)
}

// modelFailed tries again what may succeed later, and ends the turn otherwise.
// The provider's own wish to wait is honoured.
func (t turn) modelFailed(err *protocol.Error) (*runtimev1.LoopState, []Command) {
	if err.Detail == protocol.DetailGrantEnded {
		return t.fail(ReasonGrant, "The grant that the turn stood on has ended: "+err.Message)
	}
	if !err.Code.Retryable() {
		reason, known := reasons[err.Code]
		if !known {
			reason = ReasonModelFailed
		}
		return t.fail(reason, "The model call failed: "+err.Message)
	}
	if t.ModelRetries >= maxModelRetries {
		return t.fail(ReasonUnavailable, "The model did not answer after "+
			strconv.Itoa(maxModelRetries+1)+" tries: try again later; the last one said: "+err.Message)
	}
	t.ModelRetries++
	call := t.request()
	call.After = max(call.After, err.RetryAfter)
	return t.LoopState, []Command{call}
}

// answer is what may be kept of a model's message.
type answer struct {
	message  *runtimev1.Message
	text     string
	calls    []*runtimev1.ToolCall
	repeated bool // two calls had one id
}

// callIDs are the ids that calls of this conversation have.
func (t turn) callIDs() map[string]bool {
	taken := map[string]bool{}
	for _, m := range t.Messages {
		for _, b := range m.Blocks {
			if c := b.GetToolCall(); c != nil {
				taken[c.Id] = true
			}
		}
	}
	return taken
}

// read keeps text and calls and nothing else. Every call gets an id of its own,
// so that each can have exactly one result: providers promise ids that are unique
// within one answer only, and some count from one in each. Arguments that are too
// large to repeat to the model are replaced.
func read(m *runtimev1.Message, number int32, taken map[string]bool) answer {
	a := answer{message: &runtimev1.Message{Role: runtimev1.Role_ROLE_ASSISTANT}}
	given := map[string]bool{}
	for _, b := range m.GetBlocks() {
		switch k := b.Kind.(type) {
		case *runtimev1.Block_Text:
			if k.Text == "" {
				continue
			}
			a.text += k.Text
			a.message.Blocks = append(a.message.Blocks, b)
		case *runtimev1.Block_ToolCall:
			call := k.ToolCall
			id := call.GetId()
			if given[id] && id != "" {
				a.repeated = true
			}
			given[id] = true
			if taken[id] || id == "" || len(id) > maxCallID {
				id = freshID(taken, len(a.calls), number)
			}
			taken[id] = true
			a.calls = append(a.calls, &runtimev1.ToolCall{Id: id, Alias: call.GetAlias(), Arguments: call.GetArguments()})
			a.message.Blocks = append(a.message.Blocks, &runtimev1.Block{Kind: &runtimev1.Block_ToolCall{
				ToolCall: &runtimev1.ToolCall{Id: id, Alias: clip(call.GetAlias()), Arguments: shown(call.GetArguments())},
			}})
		}
	}
	return a
}

// freshID counts on from the calls that the answer has so far.
func freshID(taken map[string]bool, have int, number int32) string {
	for i := have + 1; ; i++ {
		id := "call_" + strconv.Itoa(int(number)) + "_" + strconv.Itoa(i)
		if !taken[id] {
			return id
		}
	}
}

// shown are arguments as the conversation keeps them.
func shown(arguments string) string {
	if len(arguments) > MaxArgumentBytes {
		return "{}"
	}
	return arguments
}

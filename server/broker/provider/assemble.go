package provider

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/secret"
)

// chatChunk is one event of a stream, or the whole of an unstreamed answer.
type chatChunk struct {
	Choices []struct {
		Delta        *chatReply `json:"delta"`
		Message      *chatReply `json:"message"`
		FinishReason string     `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int64 `json:"prompt_tokens"`
		CompletionTokens int64 `json:"completion_tokens"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type chatReply struct {
	Content   *string    `json:"content"`
	Refusal   *string    `json:"refusal"`
	ToolCalls []chatCall `json:"tool_calls"`
}

// maxCalls of one answer: more is garbage, not work.
const maxCalls = 128

// assembler puts an answer together from its pieces.
type assembler struct {
	route    string
	redactor *secret.Redactor
	stream   *secret.Stream
	onDelta  func(string) error

	text    strings.Builder
	calls   []*chatCall
	finish  string
	input   int64
	output  int64
	counted bool
}

// readStream reads server-sent events until [DONE] or the end.
func (a *assembler) readStream(in io.Reader) error {
	r := bufio.NewReaderSize(in, 32<<10)
	for {
		line, err := readLine(r)
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = bytes.TrimSpace(data)
			if bytes.Equal(data, []byte("[DONE]")) {
				return a.finishText()
			}
			if e := a.event(data); e != nil {
				return e
			}
		}
		switch {
		case errors.Is(err, io.EOF) && a.finish != "":
			return a.finishText() // some servers end without [DONE]
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
	}
}

// readLine reads to a line end, bounded.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, errTooLong
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimRight(line, "\r\n"), err
		}
	}
}

// readWhole reads an answer that was not streamed.
func (a *assembler) readWhole(in io.Reader) error {
	body, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	if err := a.event(body); err != nil {
		return err
	}
	if a.finish == "" {
		return garbage(a.route, "an answer names no finish reason")
	}
	return a.finishText()
}

func (a *assembler) event(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	var c chatChunk
	if err := json.Unmarshal(data, &c); err != nil {
		return garbage(a.route, "an event is no JSON")
	}
	if len(c.Error) > 0 && !bytes.Equal(c.Error, []byte("null")) {
		// A fault in the middle of a stream has no status.
		return protocol.Errorf(protocol.CodeUnavailable, "the provider of model route %s broke off: %s",
			a.route, providerText([]byte(`{"error":`+string(c.Error)+`}`), a.redactor))
	}
	if c.Usage != nil {
		a.input, a.output, a.counted = max(0, c.Usage.PromptTokens), max(0, c.Usage.CompletionTokens), true
	}
	for _, choice := range c.Choices[:min(1, len(c.Choices))] {
		reply := choice.Delta
		if reply == nil {
			reply = choice.Message
		}
		if reply != nil {
			if err := a.reply(reply); err != nil {
				return err
			}
		}
		if choice.FinishReason != "" {
			a.finish = choice.FinishReason
		}
	}
	return nil
}

func (a *assembler) reply(r *chatReply) error {
	for _, piece := range []*string{r.Content, r.Refusal} {
		if piece == nil || *piece == "" {
			continue
		}
		if err := a.emit(a.stream.Next(*piece)); err != nil {
			return err
		}
	}
	for _, part := range r.ToolCalls {
		if err := a.part(part); err != nil {
			return err
		}
	}
	return nil
}

func (a *assembler) emit(text string) error {
	if text == "" {
		return nil
	}
	a.text.WriteString(text)
	return a.onDelta(text)
}

func (a *assembler) finishText() error { return a.emit(a.stream.Rest()) }

// part adds to the call with its index. Servers that leave indexes out begin a
// new call with each name.
func (a *assembler) part(p chatCall) error {
	i := len(a.calls) - 1
	if p.Index != nil {
		i = *p.Index
	} else if p.Function.Name != "" || i < 0 {
		i = len(a.calls)
	}
	if i < 0 || i > len(a.calls) || i >= maxCalls {
		return garbage(a.route, "a tool call has index %d", i)
	}
	if i == len(a.calls) {
		a.calls = append(a.calls, &chatCall{})
	}
	c := a.calls[i]
	if p.ID != "" {
		c.ID = p.ID
	}
	c.Function.Name += p.Function.Name
	c.Function.Arguments += p.Function.Arguments
	return nil
}

var stops = map[string]runtimev1.StopReason{
	"stop":          runtimev1.StopReason_STOP_REASON_END,
	"tool_calls":    runtimev1.StopReason_STOP_REASON_TOOL_CALLS,
	"function_call": runtimev1.StopReason_STOP_REASON_TOOL_CALLS,
	"length":        runtimev1.StopReason_STOP_REASON_LENGTH,
}

func (a *assembler) answer() (*Answer, error) {
	stop, known := stops[a.finish]
	if a.finish == "content_filter" {
		return nil, protocol.Errorf(protocol.CodePolicyDenied, "the provider of model route %s filtered its answer", a.route)
	}
	if !known {
		return nil, garbage(a.route, "the finish reason is %q", clip(a.redactor.Text(a.finish)))
	}
	out := &Answer{Message: &runtimev1.Message{Role: runtimev1.Role_ROLE_ASSISTANT}, InputTokens: a.input, OutputTokens: a.output, Counted: a.counted}
	if a.text.Len() > 0 {
		out.Message.Blocks = append(out.Message.Blocks, &runtimev1.Block{Kind: &runtimev1.Block_Text{Text: a.text.String()}})
	}
	seen := map[string]bool{}
	for i, c := range a.calls {
		id := a.redactor.Text(c.ID)
		for n := i + 1; id == "" || seen[id]; n++ {
			id = fmt.Sprintf("call_%d", n) // every call needs its own
		}
		seen[id] = true
		out.Message.Blocks = append(out.Message.Blocks, &runtimev1.Block{Kind: &runtimev1.Block_ToolCall{ToolCall: &runtimev1.ToolCall{
			Id: id, Alias: a.redactor.Text(c.Function.Name), Arguments: a.redactor.Text(c.Function.Arguments),
		}}})
	}
	// Some servers say "stop" although they call tools.
	if len(a.calls) > 0 && stop == runtimev1.StopReason_STOP_REASON_END {
		stop = runtimev1.StopReason_STOP_REASON_TOOL_CALLS
	}
	out.Stop = stop
	return out, nil
}

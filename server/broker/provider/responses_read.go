package provider

import (
	"encoding/json"

	"bivouac/edge/runtime/runtimev1"
)

// responsesReader reads OpenAI Responses. Its end markers are the three events
// with the whole response: completed, incomplete, failed.
type responsesReader struct {
	*builder
	calls map[int]*builtCall // function calls by output index
	texts map[int]int        // bytes of text that came as deltas, by output index
}

func (a *responsesReader) mayEnd() bool { return false }

func (a *responsesReader) event(data []byte) (done bool, err error) {
	if string(data) == "[DONE]" { // some gateways add it
		return false, nil
	}
	var e responsesEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return false, a.unreadable("an event is no JSON")
	}
	switch e.Type {
	case "response.output_item.added":
		_, err = a.item(e.Index, e.Item)
	case "response.output_text.delta", "response.refusal.delta":
		a.textAt(e.Index, len(e.Delta))
		err = a.addText(e.Delta)
	case "response.function_call_arguments.delta":
		call := a.calls[e.Index]
		if call == nil {
			return false, a.unreadable("arguments belong to no function call")
		}
		err = a.addArguments(call, e.Delta)
	case "response.output_item.done":
		err = a.itemDone(e.Index, e.Item)
	case "response.completed", "response.incomplete", "response.failed":
		if e.Response == nil {
			return false, a.unreadable("its last event holds no response")
		}
		return true, a.end(e.Response)
	case "error":
		return false, a.said(e.Code, data)
	case "":
		return false, a.unreadable("an event names no type")
	}
	// Other events repeat what deltas said, or tell of progress.
	return false, err
}

func (a *responsesReader) textAt(index, n int) {
	if a.texts == nil {
		a.texts = map[int]int{}
	}
	a.texts[index] += n
}

// item begins an item; only function calls need it.
func (a *responsesReader) item(index int, o *responsesOutput) (*builtCall, error) {
	if o == nil || o.Type != "function_call" {
		return nil, nil
	}
	if a.calls == nil {
		a.calls = map[int]*builtCall{}
	}
	if c := a.calls[index]; c != nil {
		return c, nil
	}
	c, err := a.call(len(a.builder.calls))
	if err != nil {
		return nil, err
	}
	c.id, c.name = o.CallID, o.Name
	a.calls[index] = c
	return c, nil
}

// itemDone fills what no delta brought: servers may send items whole.
func (a *responsesReader) itemDone(index int, o *responsesOutput) error {
	if o == nil {
		return nil
	}
	if o.Type == "message" && a.texts[index] == 0 {
		text := o.text()
		a.textAt(index, len(text))
		return a.addText(text)
	}
	c, err := a.item(index, o)
	if err != nil || c == nil || c.args.Len() > 0 {
		return err
	}
	return a.addArguments(c, o.Arguments)
}

// end takes the whole response: what it used, and how it stopped.
func (a *responsesReader) end(r *responsesReply) error {
	if u := r.Usage; u != nil {
		a.count(Usage{Input: u.InputTokens, CacheRead: u.Details.CachedTokens, Output: u.OutputTokens, Counted: true})
	}
	if r.Status == "failed" || r.Error != nil {
		return a.failedWith(r.Error)
	}
	for i := range r.Output {
		if err := a.itemDone(i, &r.Output[i]); err != nil {
			return err
		}
	}
	if r.Status == "completed" {
		a.stopped(runtimev1.StopReason_STOP_REASON_END)
		return nil
	}
	reason := ""
	if r.Incomplete != nil {
		reason = r.Incomplete.Reason
	}
	switch {
	case r.Status == "incomplete" && reason == "max_output_tokens":
		a.stopped(runtimev1.StopReason_STOP_REASON_LENGTH)
		return nil
	case r.Status == "incomplete" && reason == "content_filter":
		return a.filtered("filtered its answer")
	}
	return a.unreadable("the response ended with status %q, reason %q", clip(a.redactor.Text(r.Status)), clip(a.redactor.Text(reason)))
}

func (a *responsesReader) failedWith(e *responsesError) error {
	if e == nil {
		e = &responsesError{}
	}
	body, err := json.Marshal(map[string]any{"error": e})
	if err != nil {
		return err
	}
	return a.said(e.Code, body)
}

func (a *responsesReader) whole(body []byte) error {
	var r responsesReply
	if err := json.Unmarshal(body, &r); err != nil || r.Status == "" {
		return a.unreadable("its answer is no response")
	}
	return a.end(&r)
}

package session

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"slices"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
)

// Payloads and data that the projection reads:
//
//	turn.queued     payload: the prompt
//	turn.activated  the turn belongs to the conversation from here
//	model.answered  payload: EncodePayload of the assistant's Message
//	tool.requested  data call_id: an attempt that goes on asks again, and what it gets is what counts
//	tool.dispatched data call_id: from here a missing result means unknown
//	tool.finished   data call_id, alias; payload: EncodePayload of the ToolResult
//	turn.ended      calls without a result get one
const (
	// DataCallID and DataAlias are keys of Event.Data.
	DataCallID = "call_id"
	// DataUnreachable is whom a model call did not reach: "broker".
	DataUnreachable = "unreachable"
	// DataInstead is the turn that was cancelled for a queued one.
	DataInstead = "instead_of"
	DataAlias   = "alias"
)

// Tombstone is what an erased payload projects to: always the same text, so
// that a rebuilt projection has the same bytes. INV-8.
const Tombstone = "[erased]"

const (
	skippedText = "Not run: the turn ended before this call."
	unknownText = "The outcome of this call is not known: it may have happened."
)

var deterministic = proto.MarshalOptions{Deterministic: true}

// EncodePayload is the payload of model.answered and tool.finished.
func EncodePayload(m proto.Message) (string, error) {
	b, err := deterministic.Marshal(m)
	if err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(b), nil
}

func decodePayload(e Stored, m proto.Message) error {
	b, err := base64.StdEncoding.DecodeString(e.Payload)
	if err == nil {
		err = proto.Unmarshal(b, m)
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeDataLoss, "event %d of session %s has a payload that cannot be read: %w", e.Seq, e.Session, err)
	}
	return nil
}

// Project rebuilds the conversation from the events of a session, or of one
// turn, in order of seq. It is a pure function of the stored events: erased
// payloads become tombstones, and a call of unknown outcome is shown as unknown,
// never as a failure (INV-5, INV-8). Turns that were never activated are not
// part of the conversation, and a prompt that waits is invisible.
func Project(events []Stored) ([]*runtimev1.Message, error) {
	var order []*transcript
	byTurn := map[protocol.TurnID]*transcript{}
	for _, e := range events {
		t := byTurn[e.Turn]
		if t == nil {
			t = &transcript{}
			byTurn[e.Turn] = t
			order = append(order, t)
		}
		if err := t.read(e); err != nil {
			return nil, err
		}
	}
	var out []*runtimev1.Message
	for _, t := range order {
		if t.activated {
			out = append(out, t.messages()...)
		}
	}
	return out, nil
}

// transcript is one turn: a prompt and rounds of answer and results.
type transcript struct {
	activated bool
	ended     bool
	prompt    *runtimev1.Message
	rounds    []*round
}

// round is one answer of the model. Call ids are unique within it only.
type round struct {
	answer     *runtimev1.Message
	erased     bool
	results    []*runtimev1.ToolResult
	dispatched map[string]bool
}

func (t *transcript) read(e Stored) error {
	switch e.Type {
	case TurnQueued:
		t.prompt = textMessage(runtimev1.Role_ROLE_USER, orTombstone(e.Payload))
	case TurnActivated:
		t.activated = true
	case TurnEnded:
		t.ended = true
	case ModelAnswered:
		return t.readAnswer(e)
	case ToolRequested:
		if r := t.round(); r != nil {
			r.askedAgain(e.Data[DataCallID])
		}
	case ToolDispatched:
		if r := t.round(); r != nil {
			r.dispatched[e.Data[DataCallID]] = true
		}
	case ToolFinished:
		return t.readResult(e)
	}
	return nil
}

func (t *transcript) round() *round {
	if len(t.rounds) == 0 {
		return nil
	}
	return t.rounds[len(t.rounds)-1]
}

func (t *transcript) readAnswer(e Stored) error {
	r := &round{dispatched: map[string]bool{}}
	if e.Payload == "" {
		r.erased = true
		r.answer = textMessage(runtimev1.Role_ROLE_ASSISTANT, Tombstone)
	} else {
		r.answer = &runtimev1.Message{}
		if err := decodePayload(e, r.answer); err != nil {
			return err
		}
		r.answer.Role = runtimev1.Role_ROLE_ASSISTANT
	}
	t.rounds = append(t.rounds, r)
	return nil
}

func (t *transcript) readResult(e Stored) error {
	r := t.round()
	if r == nil {
		return protocol.Errorf(protocol.CodeDataLoss, "event %d of session %s is the result of no answer", e.Seq, e.Session)
	}
	res := &runtimev1.ToolResult{CallId: e.Data[DataCallID], Status: runtimev1.ResultStatus_RESULT_STATUS_OK, Text: Tombstone}
	if e.Payload != "" {
		res = &runtimev1.ToolResult{}
		if err := decodePayload(e, res); err != nil {
			return err
		}
	}
	if res.Status == runtimev1.ResultStatus_RESULT_STATUS_FAILED && res.Code == string(protocol.CodeOutcomeUnknown) {
		res.Status = runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN // INV-5
	}
	if r.result(res.CallId) != nil {
		return nil // the first result of what was asked once is the one the model saw
	}
	r.results = append(r.results, res)
	if r.erased && !r.calls(res.CallId) {
		// A result needs its call, or no provider accepts the conversation.
		alias := e.Data[DataAlias]
		if alias == "" {
			alias = "erased"
		}
		call := &runtimev1.ToolCall{Id: res.CallId, Alias: alias, Arguments: "{}"}
		r.answer.Blocks = append(r.answer.Blocks, &runtimev1.Block{Kind: &runtimev1.Block_ToolCall{ToolCall: call}})
	}
	return nil
}

// askedAgain forgets what a call got in an attempt that was interrupted: the model
// saw the answer that the next attempt got.
func (r *round) askedAgain(callID string) {
	r.results = slices.DeleteFunc(r.results, func(res *runtimev1.ToolResult) bool { return res.CallId == callID })
	delete(r.dispatched, callID)
}

func (r *round) calls(callID string) bool {
	return slices.ContainsFunc(r.answer.Blocks, func(b *runtimev1.Block) bool { return b.GetToolCall().GetId() == callID })
}

func (r *round) result(callID string) *runtimev1.ToolResult {
	for _, res := range r.results {
		if res.CallId == callID {
			return res
		}
	}
	return nil
}

// messages of the turn: prompt, then each answer followed by the results of its
// calls in the order of the calls.
func (t *transcript) messages() []*runtimev1.Message {
	var out []*runtimev1.Message
	if t.prompt != nil {
		out = append(out, t.prompt)
	}
	for i, r := range t.rounds {
		if len(r.answer.Blocks) == 0 {
			continue // an empty answer, which the loop corrected
		}
		out = append(out, r.answer)
		over := t.ended || i < len(t.rounds)-1
		seen := map[string]bool{}
		for _, b := range r.answer.Blocks {
			call := b.GetToolCall()
			if call == nil || seen[call.Id] {
				continue
			}
			seen[call.Id] = true
			res := r.result(call.Id)
			if res == nil && over {
				res = r.missing(call.Id)
			}
			if res != nil {
				out = append(out, resultMessage(res))
			}
		}
	}
	return out
}

// missing is the result of a call that has none when its turn is over: skipped
// when it never left, unknown when it did. INV-5.
func (r *round) missing(callID string) *runtimev1.ToolResult {
	if r.dispatched[callID] {
		return &runtimev1.ToolResult{CallId: callID, Status: runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN,
			Text: unknownText, Code: string(protocol.CodeOutcomeUnknown)}
	}
	return &runtimev1.ToolResult{CallId: callID, Status: runtimev1.ResultStatus_RESULT_STATUS_SKIPPED,
		Text: skippedText, Code: string(protocol.CodeCancelled)}
}

// EncodeMessages is the stored form of a projection: length-delimited,
// deterministic.
func EncodeMessages(messages []*runtimev1.Message) ([]byte, error) {
	var b bytes.Buffer
	for _, m := range messages {
		if _, err := (protodelim.MarshalOptions{MarshalOptions: deterministic}).MarshalTo(&b, m); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// Conversation joins stored projections, oldest first.
func Conversation(projections ...[]byte) ([]*runtimev1.Message, error) {
	var out []*runtimev1.Message
	for i, p := range projections {
		r := bytes.NewReader(p)
		for {
			m := &runtimev1.Message{}
			err := protodelim.UnmarshalOptions{MaxSize: -1}.UnmarshalFrom(r, m)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, protocol.Errorf(protocol.CodeDataLoss, "projection of turn %d cannot be read: %w", i+1, err)
			}
			out = append(out, m)
		}
	}
	return out, nil
}

func textMessage(role runtimev1.Role, text string) *runtimev1.Message {
	return &runtimev1.Message{Role: role, Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_Text{Text: text}}}}
}

func resultMessage(r *runtimev1.ToolResult) *runtimev1.Message {
	return &runtimev1.Message{Role: runtimev1.Role_ROLE_TOOL,
		Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_ToolResult{ToolResult: r}}}}
}

func orTombstone(s string) string {
	if s == "" {
		return Tombstone
	}
	return s
}

package session

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"

	"google.golang.org/protobuf/proto"
)

// log builds the events of a session as the engine appends them.
type log struct {
	t      *testing.T
	events []Stored
}

func (l *log) add(turn protocol.TurnID, typ EventType, payload string, data ...string) {
	e := Stored{Session: "ses_x", Seq: int64(len(l.events) + 1), Event: Event{Type: typ, Turn: turn, Payload: payload, Data: map[string]string{}}}
	for i := 0; i+1 < len(data); i += 2 {
		e.Data[data[i]] = data[i+1]
	}
	l.events = append(l.events, e)
}

func (l *log) answer(turn protocol.TurnID, text string, calls ...string) {
	l.t.Helper()
	m := &runtimev1.Message{Role: runtimev1.Role_ROLE_ASSISTANT}
	if text != "" {
		m.Blocks = textMessage(m.Role, text).Blocks
	}
	for _, id := range calls {
		m.Blocks = append(m.Blocks, &runtimev1.Block{Kind: &runtimev1.Block_ToolCall{ToolCall: &runtimev1.ToolCall{Id: id, Alias: "read", Arguments: `{"path":"a"}`}}})
	}
	l.add(turn, ModelAnswered, l.encode(m))
}

func (l *log) finish(turn protocol.TurnID, id string, status runtimev1.ResultStatus, text, code string) {
	l.t.Helper()
	r := &runtimev1.ToolResult{CallId: id, Status: status, Text: text, Code: code}
	l.add(turn, ToolFinished, l.encode(r), DataCallID, id, DataAlias, "read")
}

func (l *log) encode(m proto.Message) string {
	l.t.Helper()
	s, err := EncodePayload(m)
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

func (l *log) project() string {
	l.t.Helper()
	messages, err := Project(l.events)
	if err != nil {
		l.t.Fatal(err)
	}
	return show(messages)
}

func show(messages []*runtimev1.Message) string {
	var b strings.Builder
	for _, m := range messages {
		role := strings.ToLower(strings.TrimPrefix(m.Role.String(), "ROLE_"))
		for _, block := range m.Blocks {
			switch k := block.Kind.(type) {
			case *runtimev1.Block_Text:
				fmt.Fprintf(&b, "%s text %s\n", role, k.Text)
			case *runtimev1.Block_ToolCall:
				fmt.Fprintf(&b, "%s call %s %s %s\n", role, k.ToolCall.Id, k.ToolCall.Alias, k.ToolCall.Arguments)
			case *runtimev1.Block_ToolResult:
				fmt.Fprintf(&b, "%s result %s %s %s\n", role, k.ToolResult.CallId, strings.TrimPrefix(k.ToolResult.Status.String(), "RESULT_STATUS_"), k.ToolResult.Text)
			}
		}
	}
	return b.String()
}

const (
	statusOK     = runtimev1.ResultStatus_RESULT_STATUS_OK
	statusFailed = runtimev1.ResultStatus_RESULT_STATUS_FAILED
)

// conversation has two turns; the second was queued while the first ran, and a
// third was cancelled in the queue.
func conversation(t *testing.T) *log {
	l := &log{t: t}
	l.add("trn_1", TurnQueued, "What is in a?")
	l.add("trn_1", TurnActivated, "")
	l.add("trn_2", TurnQueued, "And in b?")
	l.answer("trn_1", "I look.", "1", "2")
	l.add("trn_1", ToolDispatched, "", DataCallID, "1")
	l.finish("trn_1", "1", statusOK, "hello", "")
	l.finish("trn_1", "2", statusFailed, "no such file", "not_found")
	l.answer("trn_1", "hello")
	l.add("trn_1", TurnEnded, "")
	l.add("trn_3", TurnQueued, "Never mind.")
	l.add("trn_3", TurnEnded, "")
	l.add("trn_2", TurnActivated, "")
	l.answer("trn_2", "It is empty.")
	l.add("trn_2", TurnEnded, "")
	return l
}

func TestProject(t *testing.T) {
	const first = `user text What is in a?
assistant text I look.
assistant call 1 read {"path":"a"}
assistant call 2 read {"path":"a"}
tool result 1 OK hello
tool result 2 FAILED no such file
assistant text hello
`
	l := conversation(t)
	if got, want := l.project(), first+"user text And in b?\nassistant text It is empty.\n"; got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
	l.events = l.events[:11] // the second prompt waits: it is invisible
	if got := l.project(); got != first {
		t.Errorf("with a queued prompt:\n%swant:\n%s", got, first)
	}
}

// TestAskedAgain: an attempt that goes on from a checkpoint asks again, and what it
// got is what the model saw; a second result of one question is not. INV-5, INV-8.
func TestAskedAgain(t *testing.T) {
	l := &log{t: t}
	l.add("trn_1", TurnQueued, "Send it.")
	l.add("trn_1", TurnActivated, "")
	l.answer("trn_1", "", "1", "2")
	l.add("trn_1", ToolRequested, "", DataCallID, "1")
	l.finish("trn_1", "1", statusFailed, "nobody can be asked", "approval_required")
	l.add("trn_1", ToolRequested, "", DataCallID, "1")
	l.add("trn_1", ToolDispatched, "", DataCallID, "1")
	l.finish("trn_1", "1", statusOK, "sent", "")
	l.finish("trn_1", "1", statusFailed, "late", "unavailable")
	l.finish("trn_1", "2", statusOK, "read", "")
	l.add("trn_1", ToolRequested, "", DataCallID, "2") // and the machine died
	l.add("trn_1", TurnEnded, "")
	want := `user text Send it.
assistant call 1 read {"path":"a"}
assistant call 2 read {"path":"a"}
tool result 1 OK sent
tool result 2 SKIPPED ` + skippedText + "\n"
	if got := l.project(); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
	for i := range l.events { // erased, the call is there once
		l.events[i].Payload = ""
	}
	if got := l.project(); strings.Count(got, "assistant call 1 ") != 1 || strings.Count(got, "tool result 1 ") != 1 {
		t.Errorf("erased:\n%s", got)
	}
}

// TestProjectErased: what was erased is a fixed tombstone, and every result
// still has its call. INV-8.
func TestProjectErased(t *testing.T) {
	l := conversation(t)
	for i := range l.events {
		if l.events[i].Turn == "trn_1" {
			l.events[i].Payload = ""
		}
	}
	want := `user text [erased]
assistant text [erased]
assistant call 1 read {}
assistant call 2 read {}
tool result 1 OK [erased]
tool result 2 OK [erased]
assistant text [erased]
user text And in b?
assistant text It is empty.
`
	if got := l.project(); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

// TestProjectUnknown: a call that left and has no result is unknown, one that
// never left is skipped, and neither is a failure. INV-5.
func TestProjectUnknown(t *testing.T) {
	l := &log{t: t}
	l.add("trn_1", TurnQueued, "Send it.")
	l.add("trn_1", TurnActivated, "")
	l.answer("trn_1", "", "1", "2", "3")
	l.finish("trn_1", "1", statusFailed, "timeout", "outcome_unknown")
	l.add("trn_1", ToolDispatched, "", DataCallID, "2")
	open := l.project()
	l.add("trn_1", TurnEnded, "")
	ended := l.project()
	head := "user text Send it.\n" +
		"assistant call 1 read {\"path\":\"a\"}\nassistant call 2 read {\"path\":\"a\"}\nassistant call 3 read {\"path\":\"a\"}\n" +
		"tool result 1 UNKNOWN timeout\n"
	if open != head {
		t.Errorf("while it runs:\n%swant:\n%s", open, head)
	}
	if want := head + "tool result 2 UNKNOWN " + unknownText + "\ntool result 3 SKIPPED " + skippedText + "\n"; ended != want {
		t.Errorf("when it ended:\n%swant:\n%s", ended, want)
	}
}

func TestProjectOneResultEach(t *testing.T) {
	l := &log{t: t}
	l.add("trn_1", TurnQueued, "x")
	l.add("trn_1", TurnActivated, "")
	l.answer("trn_1", "") // empty: corrected, not kept
	l.answer("trn_1", "", "1")
	l.finish("trn_1", "1", statusOK, "first", "")
	l.finish("trn_1", "1", statusOK, "second", "")
	l.answer("trn_1", "", "1") // ids are unique within one answer only
	l.finish("trn_1", "1", statusOK, "third", "")
	want := "user text x\nassistant call 1 read {\"path\":\"a\"}\ntool result 1 OK first\n" +
		"assistant call 1 read {\"path\":\"a\"}\ntool result 1 OK third\n"
	if got := l.project(); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

func TestProjectRefusesDamage(t *testing.T) {
	for name, damage := range map[string]func(*log){
		"base64":           func(l *log) { l.events[3].Payload = "%%%" },
		"message":          func(l *log) { l.events[3].Payload = "AAAA" },
		"result":           func(l *log) { l.events[5].Payload = "AAAA" },
		"result before it": func(l *log) { l.events[3].Type = TurnMoved },
	} {
		l := conversation(t)
		if _, err := Project(l.events); err != nil {
			t.Fatalf("%s: undamaged: %v", name, err)
		}
		damage(l)
		if _, err := Project(l.events); protocol.CodeOf(err) != protocol.CodeDataLoss {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRebuild: the stored form of a projection rebuilds to the same bytes, turn
// by turn and at once. INV-8.
func TestRebuild(t *testing.T) {
	l := conversation(t)
	encode := func(events []Stored) []byte {
		messages, err := Project(events)
		if err != nil {
			t.Fatal(err)
		}
		b, err := EncodeMessages(messages)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	whole := encode(l.events)
	var parts [][]byte
	for _, turn := range []protocol.TurnID{"trn_1", "trn_3", "trn_2"} {
		var own []Stored
		for _, e := range l.events {
			if e.Turn == turn {
				own = append(own, e)
			}
		}
		parts = append(parts, encode(own))
	}
	if !bytes.Equal(whole, bytes.Join(parts, nil)) || !bytes.Equal(whole, encode(l.events)) {
		t.Error("the projection rebuilds to other bytes")
	}
	messages, err := Conversation(parts...)
	if err != nil || show(messages) != l.project() {
		t.Errorf("read back:\n%s%v", show(messages), err)
	}
	if _, err := Conversation(whole[:len(whole)-1]); protocol.CodeOf(err) != protocol.CodeDataLoss {
		t.Errorf("a cut projection: %v", err)
	}
}

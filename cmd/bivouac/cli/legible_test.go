package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	"bivouac/edge/legible"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
)

// What a person reads and decides on shows every rune: a path that is written in
// another order than it is read, or has letters that nobody sees, looks like it.
func TestEverythingShownIsVisible(t *testing.T) {
	const hostile = "a\u202eb\u200bc\u2066.txt\u00ad\x1b[2J\ue000"
	const visible = `a\u202eb\u200bc\u2066.txt\u00ad\u001b[2J\ue000`
	now := timestamppb.Now()
	action := &apiv1.Action{Id: "act_1", Tool: hostile, Arguments: hostile, IntentAt: now, Reason: hostile}
	for name, show := range map[string]func(io.Writer, string){
		"approval": func(w io.Writer, s string) {
			showApproval(w, &apiv1.Approval{Id: "apr_1", State: "PENDING", Tool: "files.write", RunnerName: "laptop", Arguments: s, ExpiresAt: now})
		},
		"approval of a tool": func(w io.Writer, s string) { showApproval(w, &apiv1.Approval{Tool: s, Destination: "x"}) },
		"approval elsewhere": func(w io.Writer, s string) { showApproval(w, &apiv1.Approval{Tool: "x", Destination: s}) },
		"reason":             func(w io.Writer, s string) { showApproval(w, &apiv1.Approval{DecidedByName: "me", Reason: s}) },
		"turn":               func(w io.Writer, s string) { showTurn(w, &apiv1.Turn{Prompt: s}, "") },
		"answer":             func(w io.Writer, s string) { showTurn(w, &apiv1.Turn{Answer: s}, "") },
		"why":                func(w io.Writer, s string) { showTurn(w, &apiv1.Turn{Message: s, Reason: s}, s) },
		"action": func(w io.Writer, s string) {
			a := &apiv1.Action{Tool: s, Arguments: s, Reason: s}
			showTurn(w, &apiv1.Turn{Actions: []*apiv1.Action{a}}, "")
		},
		"unknown": func(w io.Writer, s string) {
			showUnknown(w, &apiv1.UnknownAction{Action: &apiv1.Action{Tool: "x", Arguments: s}, Evidence: s, Resolution: "x", ResolutionNote: s})
		},
		"event": func(w io.Writer, s string) { showEvent(w, &apiv1.Event{At: now, Data: s}) },
		"explain": func(w io.Writer, s string) {
			showExplained(w, "trn_1", &apiv1.ExplainResponse{WaitingFor: s, Remedies: []string{s}, Pastes: []*apiv1.Paste{{Where: s, Text: s}}})
		},
		"wait": func(w io.Writer, s string) {
			io.WriteString(w, waitText("trn_1", &apiv1.ExplainResponse{State: "QUEUED", WaitingFor: s}))
		},
		"table": func(w io.Writer, s string) { showRunners(w, []*apiv1.Runner{{Name: s, Problem: s}}) },
		"error": func(w io.Writer, s string) {
			(&app{err: legible.Writer{W: w}}).exit(protocol.Errorf(protocol.CodeConflict, "%s", s))
		},
		"whatever is printed": func(w io.Writer, s string) {
			a := &app{out: w}
			_ = a.print(action, func(w io.Writer) { io.WriteString(w, s) }) // whoever forgets to escape
		},
	} {
		var b bytes.Buffer
		show(&b, hostile)
		if !strings.Contains(b.String(), visible) {
			t.Errorf("%s does not show it: %q", name, b.String())
		}
		if i := strings.IndexFunc(b.String(), func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) }); i >= 0 {
			t.Errorf("%s has an invisible rune at %d: %q", name, i, b.String())
		}
		b.Reset()
		show(&b, "grüße-日本語.txt")
		if !strings.Contains(b.String(), "grüße-日本語.txt") {
			t.Errorf("%s changes what can be seen: %q", name, b.String())
		}
	}
}

// An error ends with its code, as --json has it.
func TestErrorsNameTheirCode(t *testing.T) {
	var b bytes.Buffer
	a := &app{err: legible.Writer{W: &b}}
	if code := a.exit(protocol.Errorf(protocol.CodeConflict, "it cannot be decided any more")); code != protocol.CodeConflict.ExitCode() || b.String() != "bivouac: it cannot be decided any more [conflict]\n" {
		t.Errorf("%d, %q", code, b.String())
	}
	b.Reset()
	a.json = true
	a.exit(protocol.Errorf(protocol.CodeConflict, "with a \u200b"))
	if b.String() != `{"error":{"code":"conflict","message":"with a `+"\u200b"+`"}}`+"\n" {
		t.Errorf("JSON is not for people: %q", b.String())
	}
}

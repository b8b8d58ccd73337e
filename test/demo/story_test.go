//go:build linux

package main

import (
	"slices"
	"testing"
)

// A turn's events become a few lines of where and what: model calls in a row are
// one, and what only the machinery needs is none.
func TestStory(t *testing.T) {
	s := story{tools: map[string]string{}}
	for _, e := range []event{
		{Type: "turn.queued", Payload: "make a list", data: map[string]string{}},
		{Type: "turn.activated", data: map[string]string{}},
		{Type: "model.called", data: map[string]string{}},
		{Type: "model.answered", data: map[string]string{}},
		{Type: "model.called", data: map[string]string{}},
		{Type: "tool.requested", data: map[string]string{"call_id": "1", "tool": "http:forecast"}},
		{Type: "tool.dispatched", data: map[string]string{"call_id": "1", "destination": "weather"}},
		{Type: "tool.dispatched", data: map[string]string{"call_id": "2", "tool": "files.write", "destination": "run_x"}},
		{Type: "approval.decided", data: map[string]string{"state": "APPROVED"}},
		{Type: "turn.ended", data: map[string]string{"state": "COMPLETED"}},
	} {
		s.add(e)
	}
	want := [][2]string{
		{"server", `queues the turn, durably: "make a list"`},
		{"broker", "asks the model, 2 times; it alone adds the key"},
		{"broker", "calls weather for http:forecast; it alone adds the credential"},
		{"laptop", "files.write"},
		{"you", "say approved"},
		{"server", "the turn is completed"},
	}
	if !slices.Equal(s.lines, want) {
		t.Errorf("the story is %q", s.lines)
	}
}

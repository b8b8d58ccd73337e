package store

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"bivouac/edge/protocol"
)

// A simulation stands before COMMIT: what fails there runs again by itself, and
// an unknown outcome is told as such, on either side of the real one.
func TestCommitStandIn(t *testing.T) {
	refused := protocol.Errorf(protocol.CodeUnavailable, "no space")
	lost := protocol.Errorf(protocol.CodeOutcomeUnknown, "no reply")
	var plan []error // of the next commits; nil commits
	s, err := Open(t.Context(), Config{Path: filepath.Join(t.TempDir(), "bivouac.db"), Commit: func(commit func() error) error {
		if len(plan) == 0 {
			return commit()
		}
		next := plan[0]
		plan = plan[1:]
		if next == nil {
			return errors.Join(commit(), lost)
		}
		return next
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	id, err := conversation(s, "red")
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	update := func(text string, with ...error) error {
		plan, runs = with, 0
		return s.Update(context.Background(), loop, func(tx *Tx) error { runs++; return say(tx, id, text) })
	}
	for _, try := range []struct {
		text string
		with []error
		code protocol.Code
		runs int
	}{
		{"undisturbed", nil, "", 1},
		{"raced once", []error{refused}, "", 2},
		{"full", []error{refused, refused}, protocol.CodeUnavailable, 2},
		{"lost before", []error{lost}, protocol.CodeOutcomeUnknown, 1},
		{"lost after", []error{nil}, protocol.CodeOutcomeUnknown, 1},
		{"raced, then lost after", []error{refused, nil}, protocol.CodeOutcomeUnknown, 2},
		{"as ever", nil, "", 1},
	} {
		if err := update(try.text, try.with...); protocol.CodeOf(err) != try.code || runs != try.runs {
			t.Errorf("%s: %v, after %d runs; want %q after %d", try.text, err, runs, try.code, try.runs)
		}
	}
	want := []string{"undisturbed", "raced once", "lost after", "raced, then lost after", "as ever"}
	if got := said(t, s, id); !slices.Equal(got, want) {
		t.Errorf("committed %q, want %q", got, want)
	}
}

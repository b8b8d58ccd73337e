//go:build linux

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/test/e2e/stack"
)

// What belongs to another principal of the same tenant cannot be told from what
// is not there: same code, same exit code, same words but for the id, for every
// command that takes one. Its owner can do all of it.
func TestBadAnothersIsAbsent(t *testing.T) {
	p := newBad(t)
	notes := filepath.Join(p.home, "notes")
	p.write(filepath.Join(notes, "todo.txt"), "buy bread\n", 0o644)
	p.addEdge(stack.EdgeConfig{Name: "laptop", Folders: []string{"notes=" + notes + ":rw"}})
	work := p.project("work", map[string]string{"a.txt": "a\n"})
	coding := p.submit("run", "run: echo b >> a.txt", "--workspace", work)
	patch := p.completed(coding.ID).GetPatchDigest()
	asked := p.submit("chat", "write notes/todo.txt")
	var list struct{ Approvals []struct{ ID string } }
	await(t, "an approval is asked for", func() error {
		if p.decoded(&list, "approvals"); len(list.Approvals) != 1 {
			return fmt.Errorf("%d approvals", len(list.Approvals))
		}
		return nil
	})
	approval := list.Approvals[0].ID
	grants := p.must("grant", "list")
	grant := grants[strings.Index(grants, "grt_"):][:30]

	other := newPerson(t, p.Stack, "", "other", false)
	const nobody = "00000000000000000000000000"
	for _, c := range []struct {
		id   string
		args []string
	}{
		{asked.Session, []string{"events", "ID"}},
		{asked.Session, []string{"events", "--follow", "ID"}},
		{asked.Session, []string{"chat", "--session", "ID", "hello"}},
		{coding.Session, []string{"run", "--session", "ID", "hello"}},
		{asked.Session, []string{"sessions", "close", "ID"}},
		{asked.Session, []string{"turns", "--session", "ID"}},
		{asked.ID, []string{"turns", "ID"}},
		{asked.ID, []string{"events", "ID"}},
		{asked.ID, []string{"explain", "ID"}},
		{asked.ID, []string{"cancel", "ID"}},
		{coding.ID, []string{"apply", "--show", "ID"}},
		{approval, []string{"approve", "ID"}},
		{approval, []string{"deny", "ID"}},
		{grant, []string{"revoke", "ID"}},
	} {
		absent := c.id[:4] + nobody
		theirs := other.refused(protocol.CodeNotFound, nil, filled(c.args, c.id)...)
		none := other.refused(protocol.CodeNotFound, nil, filled(c.args, absent)...)
		if strings.ReplaceAll(theirs, c.id, "ID") != strings.ReplaceAll(none, absent, "ID") {
			t.Errorf("%v tells another's from absent:\n%s%s", c.args, theirs, none)
		}
	}
	for _, list := range [][]string{{"turns"}, {"sessions"}, {"approvals", "--all"}, {"grant", "list", "--all"}, {"edge", "list"}} {
		if out := other.must(list...); strings.Contains(out, "_0") {
			t.Errorf("%v shows another's:\n%s", list, out)
		}
	}
	// An artifact is asked for by its digest, which may be guessed or known.
	absent := "sha256:" + strings.Repeat("0", 64)
	for _, digest := range []string{patch, absent} {
		if err := other.artifact(digest); protocol.CodeOf(err) != protocol.CodeNotFound || err.Error() != "artifact "+digest+" not found" {
			t.Errorf("artifact %s: %v", digest, err)
		}
	}
	if err := p.artifact(patch); err != nil {
		t.Errorf("the owner's artifact: %v", err)
	}
	// Nothing of that changed anything for the owner.
	p.must("approve", approval)
	p.completed(asked.ID)
	p.must("apply", coding.ID)
	p.must("events", asked.Session)
	p.must("sessions", "close", asked.Session)
}

func filled(args []string, id string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = strings.ReplaceAll(a, "ID", id)
	}
	return out
}

func (p *person) artifact(digest string) error {
	var b strings.Builder
	return p.api.GetArtifact(p.t.Context(), digest, &b)
}

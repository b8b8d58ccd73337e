package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const document = "# A\n<!-- diagram:turn -->\nold\n<!-- /diagram:turn -->\ntext\n<!-- diagram:attempt --><!-- /diagram:attempt -->\n<!-- diagram:recovery -->\n<!-- /diagram:recovery -->\nend\n"

func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "DOC.md")
	if err := run(file, true); err != nil {
		t.Errorf("a document that is not there: %v", err)
	}
	if err := os.WriteFile(file, []byte(document), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(file, true); err == nil || !strings.Contains(err.Error(), "make generate") {
		t.Errorf("a document that is not current passed the check: %v", err)
	}
	if b, _ := os.ReadFile(file); string(b) != document {
		t.Error("the check wrote into the document")
	}
	if err := run(file, false); err != nil {
		t.Fatal(err)
	}
	drawn, _ := os.ReadFile(file)
	for _, part := range []string{"# A\n", "\ntext\n", "\nend\n", "QUEUED --> RECEIVED: activate", "OFFERED --> CLAIMED: claim", "| overdue | nobody | refute |"} {
		if !strings.Contains(string(drawn), part) {
			t.Errorf("%q is missing in:\n%s", part, drawn)
		}
	}
	if strings.Contains(string(drawn), "old") {
		t.Error("the old block is still there")
	}
	if err := run(file, true); err != nil {
		t.Errorf("a document that was just drawn fails the check: %v", err)
	}
}

func TestDrawRefuses(t *testing.T) {
	for name, doc := range map[string]string{
		"unknown machine": "<!-- diagram:moon --><!-- /diagram:moon -->",
		"open block":      "<!-- diagram:turn --> and no end",
	} {
		if out, err := draw(doc, diagrams()); err == nil {
			t.Errorf("%s: %q", name, out)
		}
	}
}

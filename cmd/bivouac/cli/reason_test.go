package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"bivouac/edge/protocol"
)

// Every reason for which the product ends a turn has an exit code that says what
// to do: the table is held against the places where reasons are named.
func TestEveryReasonHasAnExitCode(t *testing.T) {
	found := map[string]string{}
	for file, pattern := range map[string]string{
		"edge/runtime/loop/finish.go": `(?m)^\s+(?:Reason|Limit)\w+\s+= "([a-z_]+)"`,
		"server/engine/turn_end.go":   `(?m)^\s+reason\w+\s+= "([a-z_]+)"`,
		"server/engine/rewind.go":     `(?m)^\s+reason\w+\s+= "([a-z_]+)"`,
		"server/engine/authority.go":  `&taken\{"([a-z_]+)"`,
		"edge/protocol/result.go":     `ResultInterrupted = "([a-z_]+)"`,
	} {
		b, err := os.ReadFile(filepath.Join("../../..", file))
		if err != nil {
			t.Fatal(err)
		}
		all := regexp.MustCompile(pattern).FindAllStringSubmatch(string(b), -1)
		if len(all) == 0 {
			t.Errorf("%s names no reason any more", file)
		}
		for _, m := range all {
			found[m[1]] = file
		}
	}
	for reason, file := range found {
		if codeOfReason(reason) == protocol.CodeInternal {
			t.Errorf("%s: the reason %s has no code", file, reason)
		}
	}
	for reason := range reasonCode {
		if found[reason] == "" {
			t.Errorf("the reason %s is named nowhere", reason)
		}
	}
	if codeOfReason("nonsense") != protocol.CodeInternal {
		t.Error("a reason that nobody knows has a code")
	}
}

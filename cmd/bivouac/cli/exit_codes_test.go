package cli

import (
	"fmt"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// The page of exit codes names each code once, with its number and with words; a dry
// run's difference has one of its own, which the commands' own help says.
func TestExitCodesAreExplained(t *testing.T) {
	page := exitCodes().Long
	for code := range protocol.Codes {
		row := fmt.Sprintf("\n  %3d  %-19s  ", code.ExitCode(), code)
		if strings.Count(page, row) != 1 || exitWords[code] == "" {
			t.Errorf("%s has no row %q with words", code, row)
		}
	}
	if len(exitWords) != len(protocol.Codes) {
		t.Errorf("%d codes have words, and there are %d", len(exitWords), len(protocol.Codes))
	}
	for _, words := range [][]string{{"vault", "setup"}, {"consul", "setup"}, {"nomad", "setup"}} {
		cmd, _, err := commandTree().Find(words)
		if err != nil {
			t.Fatal(err)
		}
		if says := strings.Join(strings.Fields(cmd.Long), " "); !strings.Contains(says, fmt.Sprintf("with %d where something", protocol.ExitDiffers)) {
			t.Errorf("bivouac %v does not say what a difference ends with", words)
		}
	}
}

package usage

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
)

func TestExactly(t *testing.T) {
	for _, c := range []struct {
		n     int
		words string
		says  string // empty: they are taken
	}{
		{0, "", ""},
		{0, "bogus", `"bogus" is no command and no flag of program; see program --help`},
		{2, "one two", ""},
		{2, "one", "usage: program URL CODE; see program --help"},
		{1, "one two", "usage: program URL CODE; see program --help"},
	} {
		ran := false
		cmd := &cobra.Command{Use: "program URL CODE", DisableFlagsInUseLine: true, Args: Exactly(c.n), SilenceErrors: true, SilenceUsage: true,
			Run: func(*cobra.Command, []string) { ran = true }}
		cmd.SetArgs(strings.Fields(c.words))
		cmd.SetOut(io.Discard)
		err := cmd.ExecuteContext(t.Context())
		switch {
		case c.says == "" && (err != nil || !ran):
			t.Errorf("%d of %q: %v", c.n, c.words, err)
		case c.says != "" && (ran || protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%d of %q: %v, want %q", c.n, c.words, err, c.says)
		}
	}
}

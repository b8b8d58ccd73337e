package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// tree is the command tree as Main makes it, with nothing behind it.
func commandTree() *cobra.Command {
	a := &app{in: newInput(strings.NewReader("")), out: io.Discard, err: io.Discard}
	return a.root()
}

func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		walk(sub, visit)
	}
}

// Every command says what it does, and one that takes something says more than
// that. What help shows as an example is accepted as it stands.
func TestHelpIsTrue(t *testing.T) {
	walk(commandTree(), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.Short == "" {
			t.Errorf("%s has no short help", path)
		}
		own := 0
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			own++
			if f.Usage == "" {
				t.Errorf("%s --%s has no help", path, f.Name)
			}
		})
		takes := own > 1 || strings.Contains(cmd.Use, " ")
		if takes && cmd.Long == "" && cmd.Example == "" {
			t.Errorf("%s takes arguments, and has neither long help nor an example", path)
		}
		for line := range strings.Lines(cmd.Example) {
			if !strings.HasPrefix(line, "  ") {
				t.Errorf("%s: example %q is not indented", path, line)
			}
			checked := false
			for _, words := range commandsOf(line) {
				checked = true
				if err := accepts(words); err != nil {
					t.Errorf("%s: example %q: %v", path, strings.TrimSpace(line), err)
				}
			}
			if !checked {
				t.Errorf("%s: example %q has no command of bivouac", path, line)
			}
		}
	})
}

// accepts reports whether bivouac takes a command line, without running it.
func accepts(words []string) error {
	if words[0] != "bivouac" {
		return nil // TestMentionedCommandsExist asks the others themselves
	}
	cmd, rest, err := commandTree().Find(words[1:])
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// The check itself is proven: what does not exist is found.
func TestAcceptsFindsMistakes(t *testing.T) {
	for line, fine := range map[string]bool{
		`bivouac run --workspace . "make the failing test pass"`: true,
		`x=1 bivouac edge list && bivouac turns # both`:          true,
		`bivouac agents show assistant > assistant.hcl`:          true,
		`bivouac edge lst`:              false,
		`bivouac turns --limt 3`:        false,
		`bivouac explain`:               false,
		`bivouac turns && bivouac trns`: false,
	} {
		var failed error
		found := commandsOf(line)
		for _, words := range found {
			if err := accepts(words); err != nil {
				failed = err
			}
		}
		if len(found) == 0 || (failed == nil) != fine {
			t.Errorf("%s: %v, %v", line, found, failed)
		}
	}
}

// commandsOf are the commands of bivouac in a line of shell, as words. It knows
// quotes, comments, &&, pipes, redirections and variables set in front.
func commandsOf(line string) (all [][]string) {
	var words []string
	end := func() {
		for len(words) > 0 && strings.Contains(words[0], "=") {
			words = words[1:]
		}
		if len(words) > 0 && strings.HasPrefix(words[0], "bivouac") {
			all = append(all, words)
		}
		words = nil
	}
	for fields := shellWords(line); len(fields) > 0; fields = fields[1:] {
		switch w := fields[0]; w {
		case "&&", "|", ";":
			end()
		case ">", "<":
			if len(fields) > 1 {
				fields = fields[1:]
			}
		default:
			words = append(words, w)
		}
	}
	end()
	return all
}

func shellWords(line string) (words []string) {
	word, quote, open := "", rune(0), false
	flush := func() {
		if open {
			words = append(words, word)
		}
		word, open = "", false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '"' || r == '\'':
			quote, open = r, true
		case r == '#' && !open:
			return words
		case r == ' ' || r == '\t' || r == '\n':
			flush()
		default:
			word, open = word+string(r), true
		}
	}
	flush()
	return words
}

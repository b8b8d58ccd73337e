// Package cli holds the commands of bivouac: one file a noun. It owns what a
// person reads: tables, progress, questions, and errors that end with the
// command that mends them. Every command has --json, and its exit code comes
// from the table of error codes in edge/protocol.
//
// It guarantees that a secret is read from a terminal or a file, never from an
// argument, and is never printed except where a command exists to print it once.
// It refuses to decide anything: policy is the server's.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"bivouac/edge/legible"
	"bivouac/edge/protocol"
	"bivouac/server/api/client"
)

// version of the product; set by the build.
var version = "dev"

// app is one run of the command line.
type app struct {
	in       *input
	out      io.Writer // as it is: an answer, JSON, a patch
	err      io.Writer // for people, who see every rune of it
	json     bool
	config   string // directory of login and remembered sessions
	server   string // overrides the login's address
	api      *client.Client
	login    login
	lost     bool   // a watch is without its connection
	troubled string // what went wrong in the turn that was followed
}

// Main runs one command and returns the exit code.
func Main(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	a := &app{in: newInput(in), out: out, err: legible.Writer{W: errOut}}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if a.api != nil {
		a.api.Close()
	}
	a.json = a.json || asksJSON(args) // a flag before it may have been wrong
	return a.exit(err)
}

func asksJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json")
}

// exit prints an error the way the caller asked for and picks the exit code.
func (a *app) exit(err error) int {
	if err == nil {
		return 0
	}
	var end exitError
	if errors.As(err, &end) {
		return end.code
	}
	code := protocol.CodeOf(err)
	if a.json {
		e := struct {
			Code       protocol.Code `json:"code"`
			Message    string        `json:"message"`
			RetryAfter string        `json:"retry_after,omitempty"`
		}{Code: code, Message: err.Error()}
		if pe := (*protocol.Error)(nil); errors.As(err, &pe) && pe.RetryAfter > 0 {
			e.RetryAfter = pe.RetryAfter.String()
		}
		b, _ := json.Marshal(map[string]any{"error": e})
		fmt.Fprintln(bare(a.err), string(b))
		return code.ExitCode()
	}
	fmt.Fprintf(a.err, "bivouac: %s\n", withCode(code, err.Error()))
	return code.ExitCode()
}

// withCode ends a message with the stable code that documents and scripts know.
func withCode(code protocol.Code, message string) string {
	return message + " [" + string(code) + "]"
}

// bare is the writer behind one for people: for JSON, and for what a terminal is
// to obey.
func bare(w io.Writer) io.Writer {
	if l, ok := w.(legible.Writer); ok {
		return l.W
	}
	return w
}

// exitError ends with a code and without another line: the command has said
// what there is to say.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

func (a *app) root() *cobra.Command {
	root := group(&cobra.Command{
		Use:     "bivouac",
		Version: version,
		Short:   "Agents that last, on machines that need not",
		Long: `Bivouac runs agents: the server keeps the conversation and every decision, your
own machines do the work in a sandbox without secrets, and what you revoke is over.

First steps:
  bivouac dev                          everything on this machine
  bivouac chat --agent assistant       talk to an agent
  bivouac run --agent coder --workspace . "make the failing test pass"
  bivouac edge invite                  a code that adds another machine

bivouac help exit-codes has what a command ends with.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	})
	f := root.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "print JSON, one document a line")
	f.StringVar(&a.config, "config", defaultConfigDir(), "directory of your login (env BIVOUAC_CONFIG)")
	f.StringVar(&a.server, "server", os.Getenv("BIVOUAC_SERVER"), "address of the server instead of the login's (env BIVOUAC_SERVER)")
	in(root, "Work:",
		a.chatCommand(), a.runCommand(), a.applyCommand(), a.cancelCommand())
	in(root, "See what happens and why:",
		a.turnsCommand(), a.sessionsCommand(), a.eventsCommand(), a.ledgerCommand(), a.explainCommand(), a.debtCommand(), a.doctorCommand(), a.toolsCommand(), a.mcpCommand(), a.quotaCommand())
	in(root, "Decide:",
		a.approvalsCommand(), a.approveCommand(), a.denyCommand(), a.unknownCommand())
	in(root, "Set up and take back:",
		a.devCommand(), a.backupCommand(), a.restoreCommand(), a.loginCommand(), a.whoamiCommand(), a.agentsCommand(), a.edgeCommand(), a.grantCommand(), a.credentialCommand(), a.principalCommand(), a.revokeCommand(), a.vaultCommand(), a.consulCommand(), a.nomadCommand())
	root.AddCommand(exitCodes())
	a.completeWords(root)
	explainMistakes(root)
	return root
}

// connect reads the login and makes the client.
func (a *app) connect() (*client.Client, error) {
	if a.api != nil {
		return a.api, nil
	}
	l, err := readLogin(a.config)
	if err != nil {
		return nil, err
	}
	if a.server != "" {
		l.Server = a.server
	}
	c, err := l.client(a.connectionLost)
	if err != nil {
		return nil, err
	}
	a.api, a.login = c, l
	return c, nil
}

// connectionLost tells a person who waits, once, that nothing comes for now.
func (a *app) connectionLost(err error) {
	if !a.lost && !a.json {
		fmt.Fprintf(a.err, "\nthe connection is lost, and tried again until it is back (%s)\n", plain(err.Error()))
	}
	a.lost = true
}

func (a *app) connectionBack() {
	if a.lost && !a.json {
		fmt.Fprintln(a.err, "connected again; nothing was missed")
	}
	a.lost = false
}

// call wraps a command that needs the server.
func (a *app) call(fn func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		return fn(cmd.Context(), c, args)
	}
}

// print writes a message as JSON, or lets text write it for people.
func (a *app) print(m proto.Message, text func(w io.Writer)) error {
	if !a.json {
		text(legible.Writer{W: a.out})
		return nil
	}
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return err
	}
	if b, err = withEmptyList(m, b); err != nil {
		return err
	}
	return a.printJSON(json.RawMessage(b)) // protojson spaces at random; this does not
}

// withEmptyList writes the list of an empty listing as a list: who reads the
// document goes through it all the same.
func withEmptyList(m proto.Message, b []byte) ([]byte, error) {
	of := m.ProtoReflect().Descriptor()
	if !strings.HasPrefix(string(of.Name()), "List") || string(b) != "{}" {
		return b, nil
	}
	empty := map[string]any{}
	for i := range of.Fields().Len() {
		if field := of.Fields().Get(i); field.IsList() {
			empty[string(field.Name())] = []any{}
		}
	}
	return json.Marshal(empty)
}

// list prints a listing as print does. An empty one is not an empty table for
// people, but what to do next, beside standard output.
func (a *app) list(m proto.Message, n int, next string, text func(w io.Writer)) error {
	if n == 0 && !a.json {
		_, err := fmt.Fprintln(a.err, next)
		return err
	}
	return a.print(m, text)
}

// printJSON writes one document as one line.
func (a *app) printJSON(doc any) error {
	line, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, string(line))
	return err
}

package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
)

// exitWords are the words for what a code means to a script.
var exitWords = map[protocol.Code]string{
	protocol.CodeInternal:           "a fault of the product itself",
	protocol.CodeInvalidArgument:    "the command, or a file that it reads, is written wrongly",
	protocol.CodeUnauthenticated:    "nobody knows who you are: log in",
	protocol.CodePermissionDenied:   "you may not do this",
	protocol.CodePolicyDenied:       "a file or a grant does not allow it",
	protocol.CodeApprovalRequired:   "a person must approve it first",
	protocol.CodeNotFound:           "there is none of that name",
	protocol.CodeAlreadyExists:      "there is one of that name already",
	protocol.CodeConflict:           "something else was decided meanwhile",
	protocol.CodeFailedPrecondition: "something must be mended first; also what a doctor, or a check, ends with that finds something broken",
	protocol.CodeStaleFence:         "somebody else has taken it over",
	protocol.CodeLeaseExpired:       "the machine lost its lease",
	protocol.CodeQueueFull:          "too much waits: later",
	protocol.CodeRateLimited:        "too often: later",
	protocol.CodeBudgetExhausted:    "the budget is used up",
	protocol.CodeOutcomeUnknown:     "nobody knows whether an effect happened: bivouac unknown",
	protocol.CodeIncompatible:       "the versions do not fit",
	protocol.CodeUnavailable:        "who was asked does not answer: later",
	protocol.CodeDeadlineExceeded:   "it took too long",
	protocol.CodeCancelled:          "it was cancelled",
	protocol.CodeDataLoss:           "something was spoiled or lost",
}

// exitCodes is a page of help alone.
func exitCodes() *cobra.Command {
	row := func(b *strings.Builder, exit int, name, words string) {
		fmt.Fprintf(b, "  %3d  %-19s  %s\n", exit, name, words)
	}
	var b strings.Builder
	b.WriteString("What every command ends with, of bivouac, bivouac-server, bivouac-broker and bivouac-edge.\n\n")
	row(&b, 0, "", "it is done, or all is well")
	for _, code := range slices.SortedFunc(maps.Keys(exitWords), func(a, b protocol.Code) int { return a.ExitCode() - b.ExitCode() }) {
		row(&b, code.ExitCode(), string(code), exitWords[code])
	}
	row(&b, protocol.ExitDiffers, "", "without --apply: something differs, and nothing was changed (vault, consul and nomad setup, bivouac-broker vault-move)")
	b.WriteString("\nThe name is what an error's message ends with, in brackets, and its \"code\" with --json.")
	return &cobra.Command{Use: "exit-codes", Short: "What a command ends with, for scripts", Long: b.String()}
}

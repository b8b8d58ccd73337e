package broker

import (
	"context"
	"errors"
	"maps"
	"slices"

	"bivouac/edge/protocol"
)

// Refusal names what said no. It stands at the beginning of the text, so that a
// model, and whoever reads a log, can tell one kind from another.
type Refusal string

// The kinds.
const (
	ByAuthority Refusal = "authority" // capability, floors, grant: the work may not act any more, or never could
	ByPolicy    Refusal = "policy"    // what the capability was made for
	ByCap       Refusal = "cap"       // the broker's own file
	ByPath      Refusal = "path"      // the intentions
	ByBoundary  Refusal = "boundary"  // where data of this kind may go
	ByBudget    Refusal = "budget"    // the turn's money
)

// refusalRow is what one kind looks like.
type refusalRow struct {
	// codes that are refusals of the kind; what else fails there is a fault, and
	// says so itself.
	codes []protocol.Code
	// advice tells a model what to do now.
	advice string
}

// refusals is the table of all of them.
var refusals = map[Refusal]refusalRow{
	ByAuthority: {[]protocol.Code{protocol.CodeUnauthenticated, protocol.CodePermissionDenied, protocol.CodeStaleFence},
		"Do not repeat it: the authority for it has ended or was never given."},
	ByPolicy: {[]protocol.Code{protocol.CodePermissionDenied, protocol.CodePolicyDenied, protocol.CodeInvalidArgument},
		"Do not repeat it: use another tool, or say what is missing."},
	ByCap: {[]protocol.Code{protocol.CodePolicyDenied, protocol.CodeRateLimited},
		"The operator's limit holds whatever is asked: say so."},
	ByPath: {[]protocol.Code{protocol.CodePolicyDenied, protocol.CodeNotFound},
		"Do not repeat it: only a person can open this path."},
	ByBoundary: {[]protocol.Code{protocol.CodePolicyDenied},
		"Do not send the same data another way: it may not leave."},
	ByBudget: {[]protocol.Code{protocol.CodeBudgetExhausted},
		"Finish with what is there: there is no money for more."},
}

// question is one check of admission, and the kind of its no.
type question struct {
	by  Refusal
	ask func(context.Context, *request) error
}

func (q question) run(ctx context.Context, r *request) error {
	return refusedBy(q.by, q.ask(ctx, r))
}

// refusedBy says which kind of refusal an error is. Code and patience stay.
func refusedBy(by Refusal, err error) error {
	var e *protocol.Error
	row, known := refusals[by]
	if !known || !errors.As(err, &e) || !slices.Contains(row.codes, e.Code) {
		return err
	}
	out := protocol.Errorf(e.Code, "refused by %s: %w. %s", by, &refusalError{by, err}, row.advice)
	out.Detail, out.RetryAfter = e.Detail, e.RetryAfter
	return out
}

// refusalError remembers the kind beside the text.
type refusalError struct {
	by  Refusal
	err error
}

func (r *refusalError) Error() string { return r.err.Error() }
func (r *refusalError) Unwrap() error { return r.err }

// Refusals are all kinds, sorted.
func Refusals() []Refusal { return slices.Sorted(maps.Keys(refusals)) }

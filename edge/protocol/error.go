package protocol

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Code is an instruction to the caller. Codes are stable text; a retired one is
// never used again.
type Code string

const (
	CodeInvalidArgument    Code = "invalid_argument"
	CodeUnauthenticated    Code = "unauthenticated"
	CodePermissionDenied   Code = "permission_denied"
	CodePolicyDenied       Code = "policy_denied"
	CodeApprovalRequired   Code = "approval_required"
	CodeNotFound           Code = "not_found"
	CodeAlreadyExists      Code = "already_exists"
	CodeConflict           Code = "conflict"
	CodeFailedPrecondition Code = "failed_precondition"
	CodeStaleFence         Code = "stale_fence"
	CodeLeaseExpired       Code = "lease_expired"
	CodeQueueFull          Code = "queue_full"
	CodeRateLimited        Code = "rate_limited"
	CodeBudgetExhausted    Code = "budget_exhausted"
	CodeOutcomeUnknown     Code = "outcome_unknown"
	CodeIncompatible       Code = "incompatible"
	CodeUnavailable        Code = "unavailable"
	CodeDeadlineExceeded   Code = "deadline_exceeded"
	CodeCancelled          Code = "cancelled"
	CodeDataLoss           Code = "data_loss"
	CodeInternal           Code = "internal"
)

// Meaning is one row of the error table.
type Meaning struct {
	Connect   uint32 // Connect (and gRPC) status number
	HTTP      int    // HTTP status of the JSON API
	Exit      int    // exit code of the command line
	Retryable bool   // the same request may succeed later without a change
}

// Codes is the one table from code to what each seam makes of it.
var Codes = map[Code]Meaning{
	CodeInvalidArgument:    {3, 400, 2, false},
	CodeUnauthenticated:    {16, 401, 3, false},
	CodePermissionDenied:   {7, 403, 4, false},
	CodePolicyDenied:       {7, 403, 5, false},
	CodeApprovalRequired:   {9, 400, 6, false},
	CodeNotFound:           {5, 404, 7, false},
	CodeAlreadyExists:      {6, 409, 8, false},
	CodeConflict:           {10, 409, 9, false},
	CodeFailedPrecondition: {9, 400, 10, false},
	CodeStaleFence:         {10, 409, 11, false},
	CodeLeaseExpired:       {9, 400, 12, false},
	CodeQueueFull:          {8, 429, 13, true},
	CodeRateLimited:        {8, 429, 14, true},
	CodeBudgetExhausted:    {8, 429, 15, false},
	CodeOutcomeUnknown:     {9, 400, 16, false},
	CodeIncompatible:       {9, 400, 17, false},
	CodeUnavailable:        {14, 503, 18, true},
	CodeDeadlineExceeded:   {4, 504, 19, false},
	CodeCancelled:          {1, 499, 20, false},
	CodeDataLoss:           {15, 500, 21, false},
	CodeInternal:           {13, 500, 1, false},
}

// ExitDiffers is what a dry run ends with that found something to do. No code has it:
// nothing went wrong, and a script tells it from everything that did.
const ExitDiffers = 22

// Retryable reports whether the same request may succeed later.
func (c Code) Retryable() bool { return Codes[c].Retryable }

// ExitCode is what a command line ends with.
func (c Code) ExitCode() int {
	if m, ok := Codes[c]; ok {
		return m.Exit
	}
	return 1
}

// Detail tells apart what one code can mean, for a peer that mends one of the
// meanings by itself. It is stable text, as codes are; who does not know it goes by
// the code.
type Detail string

// DetailSliceBoot: the budget slice was cut for another start of the broker. Nothing
// was drawn, and the next slice will do.
const DetailSliceBoot Detail = "slice_of_another_boot"

// DetailGrantEnded: the grant that the request stands on has ended. Its holder may
// know that before the server does.
const DetailGrantEnded Detail = "grant_ended"

// DetailGrantRotated: the grant lives, and what the request carries is an older secret
// part of it. Nothing was sent; with the newer part it may be asked again.
const DetailGrantRotated Detail = "grant_rotated"

// DetailCredentialRefused: what is stored as a credential counts no more where it came
// from. A person stores another.
const DetailCredentialRefused Detail = "credential_refused"

// DetailUnreachable: the peer was not reached over any transport, so nobody was asked.
const DetailUnreachable Detail = "unreachable"

// DetailIntention: an intention in Consul says that the one process may not reach the
// other. A person changes it.
const DetailIntention Detail = "intention"

// Error is the one error type of the product. Message is for people: it names
// what failed, why, and what to do next. It never holds a secret.
type Error struct {
	Code       Code
	Detail     Detail // empty: the code says it all
	Message    string
	RetryAfter time.Duration
	Err        error
}

// Errorf makes an Error; %w keeps the cause.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
}

func (e *Error) Error() string { return e.Message }

func (e *Error) Unwrap() error { return e.Err }

// Mend is the command that mends an error, where something in it knows one, as whatever
// refuses a file that is open to others; otherwise where nothing does.
func Mend(err error, otherwise string) string {
	var by interface{ Mend() string }
	if errors.As(err, &by) {
		return by.Mend()
	}
	return otherwise
}

// Is matches by code when the target is a bare code, so that
// errors.Is(err, &Error{Code: CodeNotFound}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Message == "" && t.Code == e.Code
}

// DetailOf is the detail of err's own code.
func DetailOf(err error) Detail {
	var e *Error
	if errors.As(err, &e) {
		return e.Detail
	}
	return ""
}

// CodeOf is the code of err: its own, that of a context error, or internal.
func CodeOf(err error) Code {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, context.DeadlineExceeded):
		return CodeDeadlineExceeded
	case errors.Is(err, context.Canceled):
		return CodeCancelled
	}
	return CodeInternal
}

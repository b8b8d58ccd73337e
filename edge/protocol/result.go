package protocol

// Statuses of a Result: how an attempt ended, in the runner's words. What the
// runner cannot tell is unknown, never failed (INV-5).
const (
	ResultSucceeded = "succeeded"
	ResultFailed    = "failed"
	ResultCancelled = "cancelled"
	ResultDenied    = "denied"
	ResultUnknown   = "unknown"
	// ResultParked: the attempt ended because a person is asked, with a cursor from
	// which another goes on. Its code is approval_required.
	ResultParked = "parked"
)

// ResultInterrupted is the code of a failed Result whose worker, supervisor or
// machine ended before the work did. It is a known outcome: nothing runs any
// more, and another attempt may go on from the last checkpoint.
const ResultInterrupted = "interrupted"

package protocol

// Statuses of a Result: how an attempt ended, in the runner's words. What the
// runner cannot tell is unknown, never failed (INV-5).
const (
	ResultSucceeded = "succeeded"
	ResultFailed    = "failed"
	ResultCancelled = "cancelled"
	ResultDenied    = "denied"
	ResultUnknown   = "unknown"
)

// ResultInterrupted is the code of a failed Result whose worker, supervisor or
// machine ended before the work did. It is a known outcome: nothing runs any
// more, and another attempt may go on from the last checkpoint.
const ResultInterrupted = "interrupted"

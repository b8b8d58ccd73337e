package provider

import (
	"slices"
	"time"

	"bivouac/edge/protocol"
)

// Stage is how far a call came.
type Stage string

// In this order.
const (
	Unsent  Stage = "unsent"  // no connection: not a byte of the request left
	Sent    Stage = "sent"    // the request left, no status came back
	Refused Stage = "refused" // a status that brings no answer
	Begun   Stage = "begun"   // the answer had begun
)

// Fault is what ended it.
type Fault string

// Faults, beside statuses.
const (
	Unreachable Fault = "unreachable"
	Forbidden   Fault = "forbidden" // by the broker's own egress policy
	Status      Fault = "status"
	BrokeOff    Fault = "broke_off"
	EndedEarly  Fault = "ended_early" // a clean end without the format's end marker
	Idle        Fault = "idle"
	Said        Fault = "said" // the provider names a fault inside of its answer
	Unreadable  Fault = "unreadable"
	Filtered    Fault = "filtered"
	Stopped     Fault = "stopped" // by the caller: cancelled, revoked, out of time
)

// Owed is what a failed call is charged with.
type Owed string

// What may be owed.
const (
	Nothing  Owed = "nothing"
	TheInput Owed = "the input"     // it left, and may have been read
	WhatCame Owed = "what has come" // the input and the part of the answer that came
)

// Rule is one row of the table: what a failure means for the same request.
type Rule struct {
	What     string
	Stage    Stage
	Faults   []Fault
	Statuses []int // of Status; empty: every other one
	Empty    bool  // nothing of an answer came, and nothing was counted
	// Again says that the broker may send the same request once more. Only what
	// brought no part of an answer has it: what streamed is never replayed.
	Again bool
	Owed  Owed
}

// Rules are the whole of it; the first row that fits decides.
var Rules = []Rule{
	{What: "no connection", Stage: Unsent, Faults: []Fault{Unreachable}, Again: true, Owed: Nothing},
	{What: "an address that policy refuses", Stage: Unsent, Faults: []Fault{Forbidden}, Owed: Nothing},
	{What: "stopped before it left", Stage: Unsent, Faults: []Fault{Stopped}, Owed: Nothing},
	{What: "asked to slow down", Stage: Refused, Faults: []Fault{Status}, Statuses: []int{429}, Again: true, Owed: Nothing},
	{What: "a fault of the provider", Stage: Refused, Faults: []Fault{Status}, Statuses: []int{408, 500, 502, 503, 504, 529}, Again: true, Owed: Nothing},
	{What: "refused for good", Stage: Refused, Faults: []Fault{Status, Unreadable}, Owed: Nothing},
	{What: "broke off before a status", Stage: Sent, Faults: []Fault{BrokeOff}, Owed: TheInput},
	{What: "no answer in time", Stage: Sent, Faults: []Fault{Idle}, Owed: TheInput},
	{What: "stopped while it waited", Stage: Sent, Faults: []Fault{Stopped}, Owed: TheInput},
	{What: "stream ended early", Stage: Begun, Faults: []Fault{EndedEarly}, Owed: WhatCame},
	{What: "stream broke off", Stage: Begun, Faults: []Fault{BrokeOff}, Owed: WhatCame},
	{What: "stream stood still", Stage: Begun, Faults: []Fault{Idle}, Owed: WhatCame},
	{What: "a fault named instead of an answer", Stage: Begun, Faults: []Fault{Said}, Empty: true, Owed: Nothing},
	{What: "a fault named in the stream", Stage: Begun, Faults: []Fault{Said}, Owed: WhatCame},
	{What: "an answer that cannot be read", Stage: Begun, Faults: []Fault{Unreadable}, Owed: WhatCame},
	{What: "an answer that is withheld", Stage: Begun, Faults: []Fault{Filtered}, Owed: WhatCame},
	{What: "stopped while it streamed", Stage: Begun, Faults: []Fault{Stopped}, Owed: WhatCame},
}

// Failure is a call that was tried and brought no whole answer.
type Failure struct {
	Stage  Stage
	Fault  Fault
	Status int // of Refused
	// Usage that the provider counted before it failed, and the bytes of text and
	// calls that came.
	Usage Usage
	Bytes int
	Err   error
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// Rule of the failure. What no row foresees is not repeated, and charged as if
// all that came was wanted.
func (f *Failure) Rule() Rule {
	for _, r := range Rules {
		empty := f.Bytes == 0 && f.Usage == (Usage{})
		if r.Stage == f.Stage && slices.Contains(r.Faults, f.Fault) && (len(r.Statuses) == 0 || slices.Contains(r.Statuses, f.Status)) && (empty || !r.Empty) {
			return r
		}
	}
	return Rule{What: "unforeseen", Stage: f.Stage, Faults: []Fault{f.Fault}, Owed: WhatCame}
}

// Retry bounds how often and how long one call is tried.
type Retry struct {
	// Tries of the same request in all.
	Tries int
	// First pause; each further one may be twice as long, up to Most.
	First, Most time.Duration
	// Waits of all pauses together: longer ones are the loop's, whose waiting is
	// durable and holds no reservation.
	Waits time.Duration
}

// DefaultRetry of the broker.
var DefaultRetry = Retry{Tries: 3, First: 250 * time.Millisecond, Most: 4 * time.Second, Waits: 10 * time.Second}

// Pause before the next try, after so many tries that waited so long in all. left
// is the time until the turn's end, jitter a number from 0 to 1. A wish of the
// provider's to wait is never cut short: either it fits, or there is no next try.
func (r Retry) Pause(f *Failure, tries int, waited, left time.Duration, jitter float64) (time.Duration, bool) {
	if !f.Rule().Again || tries >= r.Tries {
		return 0, false
	}
	pause := min(r.First<<(tries-1), r.Most)
	pause = time.Duration(float64(pause) * (0.5 + jitter/2))
	if asked := retryAfterOf(f.Err); asked > 0 {
		pause = asked + time.Duration(float64(r.First)*jitter)
	}
	if pause > r.Waits-waited || pause >= left {
		return 0, false
	}
	return pause, true
}

func retryAfterOf(err error) time.Duration {
	if e, ok := err.(*protocol.Error); ok {
		return e.RetryAfter
	}
	return 0
}

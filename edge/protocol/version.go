package protocol

import "slices"

// Version is one step of the contracts between the binaries. N and N-1
// interoperate; a test checks that the history is dated and without gaps.
type Version struct {
	N    int32
	Date string // YYYY-MM-DD
	What string
}

// History is append only, newest last.
var History = []Version{
	{N: 1, Date: "2026-11-29", What: "enrolment, mailbox, claim, lease, report, blobs; model calls and http tools through the broker"},
}

// Current is the version this binary speaks.
func Current() int32 { return History[len(History)-1].N }

// Oldest is the oldest version this binary still speaks.
func Oldest() int32 { return max(1, Current()-1) }

// Agree picks the version that both sides speak, or says which side is too old.
func Agree(peerOldest, peerCurrent int32) (int32, error) {
	v := min(Current(), peerCurrent)
	if v < Oldest() || v < peerOldest || !slices.ContainsFunc(History, func(h Version) bool { return h.N == v }) {
		older := "the other side"
		if Current() < peerCurrent {
			older = "this side"
		}
		return 0, Errorf(CodeIncompatible, "contract versions do not meet: here %d to %d, there %d to %d; upgrade %s",
			Oldest(), Current(), peerOldest, peerCurrent, older)
	}
	return v, nil
}

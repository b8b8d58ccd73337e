package protocol

import (
	"strconv"
	"strings"
)

// allocationPrefix begins the id of every job in which another scheduler starts the
// supervisor of one attempt.
const allocationPrefix = "bivouac-"

// AllocationJob is the id of the job for the nth offer of an attempt, counted from 1.
// An id is never used twice.
func AllocationJob(a AttemptID, n int) string {
	_, ulid, _ := strings.Cut(a.String(), "_")
	return allocationPrefix + ulid + "-" + strconv.Itoa(n)
}

// ParseAllocationJob reads such an id and refuses every other text: nothing else is
// ever made part of a path.
func ParseAllocationJob(s string) (a AttemptID, n int, err error) {
	rest, ok := strings.CutPrefix(s, allocationPrefix)
	letters, count, two := strings.Cut(rest, "-")
	if ok && two {
		if a, err = ParseID[AttemptKind](AttemptKind{}.Prefix() + "_" + letters); err == nil {
			if n, err = strconv.Atoi(count); err == nil && n > 0 && AllocationJob(a, n) == s {
				return a, n, nil
			}
		}
	}
	return "", 0, Errorf(CodeInvalidArgument, "%q is not the job of an attempt: that is %s, the 26 small letters and digits of the attempt, and a number, as the server makes it", clip(s), allocationPrefix+"…-N")
}

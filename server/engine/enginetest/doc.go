// Package enginetest has what it takes to drive an engine without processes and
// sockets: a broker and a runner that are small real implementations of their
// contracts, and a World that steps the engine's ticks and ops one at a time in
// one goroutine. Tests use it inside testing/synctest; a simulation seeds it.
//
// The broker verifies every capability, holds the feed's floors, keeps a call
// log and counts effects, so that a test can ask what really happened. The runner
// claims, works on files in memory and reports from a journal. Both can be told
// to lose an answer or to stop at a step.
package enginetest

// Package loop is the model/tool loop, and the only one: the engine drives it
// for a turn that runs in the server, the worker's native adapter for one that
// runs on a runner. It is pure: a state and an input give a state and commands.
//
// It guarantees that the calls of one model response run in order, that each
// gets exactly one result before the next model call, that a limit ends the
// turn with its name, and that only the instructions of the snapshot are system
// text. It refuses I/O, clocks and randomness.
package loop

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// Input is what happened.
type Input interface{ input() }

type (
	// Begin starts a new state, or resumes one: it repeats the command that the
	// state waits for.
	Begin struct{}
	// ModelAnswered is a whole answer.
	ModelAnswered struct{ Done *runtimev1.ModelDone }
	// ModelFailed is an answer that never came. Retryable codes are tried again
	// within Limits, others end the turn.
	ModelFailed struct{ Err *protocol.Error }
	// ToolAnswered is the one result of the call in flight.
	ToolAnswered struct{ Result *runtimev1.ToolResult }
	// Cancel ends the turn; calls without a result get SKIPPED.
	Cancel struct{}
	// Expire ends the turn by its wall time.
	Expire struct{}
)

func (Begin) input()         {}
func (ModelAnswered) input() {}
func (ModelFailed) input()   {}
func (ToolAnswered) input()  {}
func (Cancel) input()        {}
func (Expire) input()        {}

// Command is what the driver must do next.
type Command interface{ command() }

type (
	// CallModel asks for the next answer, not before After has passed.
	CallModel struct {
		Request *runtimev1.ModelRequest
		After   time.Duration
	}
	// CallTool runs one call of the accepted set; its arguments are valid and
	// canonical (RFC 8785).
	CallTool struct {
		Call *runtimev1.ToolCall
		Tool *runtimev1.Tool
	}
	// Finish ends the loop.
	Finish struct{ Outcome *runtimev1.Outcome }
)

func (CallModel) command() {}
func (CallTool) command()  {}
func (Finish) command()    {}

// New is the first state of a turn.
func New(s *runtimev1.Spec) *runtimev1.LoopState { panic("loop: not built") }

// Step is the whole loop. It does not change s; the returned state replaces it.
func Step(s *runtimev1.LoopState, in Input) (*runtimev1.LoopState, []Command) {
	panic("loop: not built")
}

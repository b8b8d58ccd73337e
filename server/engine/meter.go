package engine

import (
	"time"

	"bivouac/edge/protocol"
)

// Meter is told what happens, by whoever watches a deployment. It must not wait.
// What is told are words of this package and of the protocol, never what a model,
// a person or a machine said.
type Meter interface {
	// Activated: a turn began, after so long in the queue.
	Activated(waited time.Duration)
	// ActivationLost: another replica, or a change of the turn, was faster.
	ActivationLost()
	// ToolRefused: a model called a tool that was not offered, or with arguments
	// that its schema does not admit: loop.RefusedName or loop.RefusedSchema.
	ToolRefused(why string)
	// Minted: a capability was signed, or refused with a code.
	Minted(refused protocol.Code)
	// Unknown: nobody knows any more whether an effect happened.
	Unknown()
	// Decided: an approval got its answer, or its end, after so long.
	Decided(state string, waited time.Duration)
}

// unmetered is for nobody who watches.
type unmetered struct{}

func (unmetered) Activated(time.Duration)       {}
func (unmetered) ActivationLost()               {}
func (unmetered) ToolRefused(string)            {}
func (unmetered) Minted(protocol.Code)          {}
func (unmetered) Unknown()                      {}
func (unmetered) Decided(string, time.Duration) {}

// refusedTool counts a refusal of the loop, once it is durable.
func (w *turnTx) refusedTool(why string) {
	if why != "" {
		w.afterCommit(func() { w.e.cfg.Meter.ToolRefused(why) })
	}
}

// minted counts what the signer was asked for.
func (e *Engine) minted(err error) {
	code := protocol.CodeOf(err)
	if isTaken(err) {
		code = protocol.CodePermissionDenied
	}
	e.cfg.Meter.Minted(code)
}

// FeedAge is how old the broker's feed was when it answered last; unknown while
// it does not, and before it has one.
func (e *Engine) FeedAge() (age time.Duration, known bool) {
	d, err := e.view.current(time.Now())
	if err != nil || d.GetFeedAgeMs() < 0 {
		return 0, false
	}
	return time.Duration(d.GetFeedAgeMs()) * time.Millisecond, true
}

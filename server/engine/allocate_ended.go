package engine

import (
	"context"
	"time"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/store"
)

// Times of the question how a task ended. Nomad hears of an end later than the machine.
const (
	wordIn    = 3 * time.Second
	wordEvery = 250 * time.Millisecond
)

func wordOp(job string) string { return "word/" + job }

// also joins what is said of one thing.
func also(before, more string) string {
	if before == "" || more == "" {
		return before + more
	}
	return before + "; " + more
}

// endedEarly takes an offer back whose supervisor ended before its claim, once Nomad has
// said how: soon after nobody has the job any more. The machine's words are kept first, so
// that whoever takes the offer back has them too.
func (e *Engine) endedEarly(ctx context.Context, offered execution.Attempt, workload, why string) error {
	err := e.cfg.Store.Update(ctx, store.AsLoop("decline"), func(tx *store.Tx) error {
		a, err := tx.Attempt(offered.ID)
		if err != nil {
			return err
		}
		if a.State != execution.AttemptOffered || a.Allocation != offered.Allocation {
			return protocol.Errorf(protocol.CodeConflict, "attempt %s moved on", a.ID)
		}
		next := a
		next.DeferReason = why
		return tx.SaveAttempt(next, a.State, a.Fence)
	})
	if err != nil || e.busy(wordOp(offered.Allocation)) {
		return err
	}
	if e.cfg.Ops.Start(wordOp(offered.Allocation), func(ctx context.Context) {
		said := e.lastWord(ctx, workload, offered.Allocation)
		e.settled.put(completion{op: wordOp(offered.Allocation), apply: func(ctx context.Context) error { return e.withdraw(ctx, offered, said) }})
	}) {
		return nil
	}
	return e.withdraw(ctx, offered, "")
}

// lastWord is what Nomad says of an end, as soon as it knows of it.
func (e *Engine) lastWord(ctx context.Context, workload, job string) string {
	ctx, cancel := context.WithTimeout(ctx, wordIn)
	defer cancel()
	const its = "Nomad says of its task: "
	for {
		said, over, err := e.cfg.Allocations.Word(ctx, workload, job)
		switch {
		case ctx.Err() != nil:
			return its + "nothing yet"
		case err != nil:
			return "Nomad says nothing: " + err.Error()
		case over && said == "":
			return its + "it is gone"
		case over:
			return its + said
		}
		op.Sleep(ctx, wordEvery)
	}
}

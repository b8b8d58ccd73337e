package engine

import (
	"context"
	"errors"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/redact"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/execution"
	"bivouac/server/store"
)

// takePrefix tells the nonce of a runner that keeps it until it has its epoch from
// the boot nonce of one that does not.
const takePrefix = "take:"

// takenBy is what the connection row remembers of who took it.
func takenBy(req *runnerv1.ConnectRequest) string {
	if req.TakeNonce != "" {
		return takePrefix + req.TakeNonce
	}
	return req.BootNonce
}

// rememberedAhead bounds how far a runner's memory may be ahead of the store.
const rememberedAhead = 1 << 32

// nextEpoch is above both memories.
func nextEpoch(last execution.Connection, req *runnerv1.ConnectRequest) int64 {
	if req.LastEpoch > last.Epoch+rememberedAhead {
		return last.Epoch + 1
	}
	return max(last.Epoch, req.LastEpoch) + 1
}

// copied refuses a machine that came with the key of a runner and an older memory
// of its connection than the machine that took it last.
type copied struct{ err *protocol.Error }

func (c *copied) Error() string { return c.err.Error() }
func (c *copied) Unwrap() error { return c.err }

func isCopied(err error) bool { return errors.As(err, new(*copied)) }

// sole refuses a copy of a runner's state. Whoever took the connection since this
// machine's last epoch, by neither of the nonces that it keeps, was another
// machine. That one is not disturbed, so the two do not take turns. Who remembers
// nothing is let in: then the other one is refused, and its owner hears of it.
func sole(r execution.Runner, last execution.Connection, req *runnerv1.ConnectRequest) error {
	nonce, ours := strings.CutPrefix(last.BootNonce, takePrefix)
	if !ours || req.LastNonce == "" || req.LastEpoch >= last.Epoch || nonce == req.TakeNonce || nonce == req.LastNonce {
		return nil
	}
	return &copied{protocol.Errorf(protocol.CodeAlreadyExists,
		"the runner %s (%q) connected from another machine%s at %s: that machine and this one have the same key, because one state directory is a copy of the other; "+
			"here, run bivouac-edge leave --force and join with a new code; if it is the other one that should not be, run bivouac edge revoke %s at the server and join both again",
		r.ID, r.Name, named(r.Facts.Host), last.TakenAt.UTC().Format(time.RFC3339), r.ID)}
}

func named(host string) string {
	if host == "" {
		return ""
	}
	return " (" + host + ")"
}

// copyEvery bounds how often a copy that keeps coming is written down.
const copyEvery = time.Minute

// noteCopy tells the runner's owner. It is no part of the refusal.
func (e *Engine) noteCopy(ctx context.Context, c store.Caller, f *runnerv1.Facts) {
	var noted bool
	err := e.cfg.Store.Update(ctx, store.AsLoop("copies"), func(tx *store.Tx) error {
		noted = false
		r, err := tx.Runner(c.Runner())
		if err != nil {
			return err
		}
		if old := r.Facts.Copy; tx.Now.Sub(old.At) < copyEvery && old.BootID == f.GetBootId() {
			return nil
		}
		r.Facts.Copy, noted = execution.Copy{At: tx.Now, Host: hostName(f), BootID: f.GetBootId()}, true
		return tx.SaveRunner(r, r.State)
	})
	if err != nil || noted {
		e.cfg.Log.Warn("a second machine has the key of a runner and was refused", "runner", c.Runner(), "host", hostName(f), "error", err)
	}
}

// hostName as a machine gave it, made fit for people's eyes.
func hostName(f *runnerv1.Facts) string {
	name, _ := redact.Text(f.GetHost())
	if len(name) > 253 {
		name = name[:253]
	}
	return strings.ToValidUTF8(name, "")
}

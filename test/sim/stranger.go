package sim

import (
	"context"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	"bivouac/server/session"
	"bivouac/server/store"
)

// stranger is a person of another tenant who got hold of identifiers that are not
// theirs, and tries what they are good for. INV-9.
type stranger struct{ *person }

func (p *stranger) begin() {
	if p.s.plan.lies > 0 {
		p.after(p.s.between(0, 10*time.Second), "", p.try)
	}
}

// try asks for one thing of somebody else.
func (p *stranger) try() {
	p.after(p.s.between(0, 20*time.Second), "", p.try)
	s := p.s
	h := pick(s, s.hosts...)
	turns := s.shadow.order
	if !h.up || h.frozen() || s.healed || len(turns) == 0 {
		return
	}
	t := s.shadow.turns[pick(s, turns...)]
	what, ask := p.pickWish(t)
	s.fault(faultLie)
	h.call("foreign "+what+" of "+t.ID.String(), func(error) {}, func(ctx context.Context, e *engine.Engine) error {
		err := ask(ctx, e)
		s.foreign(what+" of a stranger", err)
		return nil
	})
}

// wish is one call that is not the caller's to make.
type wish func(ctx context.Context, e *engine.Engine) error

// pickWish is one use case with somebody else's identifier.
func (p *stranger) pickWish(t session.Turn) (what string, ask wish) {
	c := p.me
	switch p.s.rng.IntN(9) {
	case 0:
		return "cancel", func(ctx context.Context, e *engine.Engine) error { _, err := e.CancelTurn(ctx, c, t.ID); return err }
	case 1:
		return "submit", func(ctx context.Context, e *engine.Engine) error {
			_, err := e.SubmitTurn(ctx, c, engine.NewTurn{Session: t.Session, MessageID: t.MessageID, Prompt: t.Prompt})
			return err
		}
	case 2:
		return "close", func(ctx context.Context, e *engine.Engine) error {
			_, err := e.CloseSession(ctx, c, t.Session)
			return err
		}
	case 3:
		return "revoke machine", func(ctx context.Context, e *engine.Engine) error {
			_, err := e.RevokeRunner(ctx, c, p.s.machines[0].id, "mine")
			return err
		}
	case 4:
		return "disable", func(ctx context.Context, e *engine.Engine) error {
			_, err := e.DisablePrincipal(ctx, c, t.Principal)
			return err
		}
	case 5:
		return "watch", func(ctx context.Context, e *engine.Engine) error {
			_, stop, err := e.WatchLive(ctx, c, t.Session)
			if err == nil {
				stop()
			}
			return err
		}
	case 6:
		return "erase", func(ctx context.Context, e *engine.Engine) error {
			_, err := e.EraseSession(ctx, c, t.Session)
			return err
		}
	case 7:
		return "resolve", func(ctx context.Context, e *engine.Engine) error {
			for _, a := range p.s.actionsOf(t.ID) {
				_, err := e.ResolveUnknown(ctx, c, engine.Resolution{Action: a.ID, Verdict: "happened"})
				return err
			}
			return absentHere
		}
	}
	return "list", func(ctx context.Context, e *engine.Engine) error {
		return p.s.store.View(ctx, c, func(tx *store.Tx) error {
			turns, _, err := tx.Turns("", 0, "")
			approvals, err1 := tx.Approvals(true)
			if n := len(turns) + len(approvals); n > 0 && err == nil && err1 == nil {
				p.s.violate("INV-9: a stranger is shown %d turns and approvals of others", n)
			}
			if err == nil {
				err = absentHere
			}
			return err
		})
	}
}

// absentHere is what a wish answers that had nothing to ask for.
var absentHere = protocol.Errorf(protocol.CodeNotFound, "nothing of that kind is there")

// foreign judges the answer to somebody who asked for what is not theirs: that it
// is not there, and nothing else. A server that cannot say so may say nothing.
func (s *Sim) foreign(what string, err error) {
	switch code := protocol.CodeOf(err); {
	case code == protocol.CodeNotFound, code == protocol.CodeUnavailable, err != nil && s.excused:
		return
	}
	s.violate("INV-9: %s is answered with %q: %v", what, protocol.CodeOf(err), err)
}

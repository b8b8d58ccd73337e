package sim

import (
	"context"
	"slices"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/engine"
	"bivouac/server/execution"
)

// lie is the other side of this machine: somebody with its key who says to the
// servers what is not true. The machine itself goes on as ever.
func (m *machine) lie() {
	s := m.s
	if s.plan.lies == 0 {
		return
	}
	s.after(s.between(0, time.Duration(2*float64(time.Second)/s.plan.lies)), "", m.lie)
	if s.healed || m.epoch == 0 || m.fenced || !m.at.up || m.at.frozen() || !m.links[m.at.n].up() {
		return
	}
	name, say := m.untruth()
	if say == nil {
		return
	}
	s.fault(faultLie)
	m.at.call(m.name+" lies: "+name, func(error) {}, say)
}

// untruth is one thing that is not so.
func (m *machine) untruth() (name string, say func(ctx context.Context, e *engine.Engine) error) {
	s := m.s
	foreign, own := s.attemptsBut(m), s.attemptsOf(m)
	if s.plan.key.machine >= 0 && s.chance(0.3) {
		return m.claimsYes(own, foreign)
	}
	switch n := s.rng.IntN(10); {
	case n < 2 && len(m.wire) > 0:
		return "what it said before", m.retell(pick(s, m.wire...))
	case n < 4 && len(own) > 0:
		return "a forged fence", m.retell(m.forged(pick(s, own...)))
	case n == 4 && len(own) > 0:
		return m.secondClaim(pick(s, own...))
	case n == 5:
		return "a forged epoch", func(ctx context.Context, e *engine.Engine) error {
			if items, err := e.Mail(ctx, m.caller, m.epoch+7, 0, 16); err == nil {
				s.violate("INV-9: %s reads its mailbox under an epoch that was not given: %d items", m.name, len(items))
			}
			return nil
		}
	case n == 6:
		return m.stolen()
	case len(foreign) > 0:
		return m.overreach(pick(s, foreign...))
	}
	return "", nil
}

// attemptsOf this machine, and of all others, that are not over.
func (s *Sim) attemptsOf(m *machine) []execution.Attempt {
	return s.attempts(func(a execution.Attempt) bool { return a.Runner == m.id && !a.State.Terminal() })
}

func (s *Sim) attemptsBut(m *machine) []execution.Attempt {
	return s.attempts(func(a execution.Attempt) bool { return a.Runner != m.id && a.Runner != "" })
}

func (s *Sim) attempts(which func(execution.Attempt) bool) (out []execution.Attempt) {
	for _, a := range s.shadow.attempts {
		if which(a) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b execution.Attempt) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	return out
}

// retell says something in a report that was said before, or never.
func (m *machine) retell(req *runnerv1.ReportRequest) func(ctx context.Context, e *engine.Engine) error {
	return func(ctx context.Context, e *engine.Engine) error {
		m.s.reports(protocol.AttemptID(req.AttemptId), protocol.Fence(req.Fence))
		_, err := e.Report(ctx, m.caller, req)
		return err
	}
}

// forged is a result under a fence that was not given. INV-3.
func (m *machine) forged(a execution.Attempt) *runnerv1.ReportRequest {
	fence := a.Fence + pick(m.s, protocol.Fence(-1), 1, 2, 1<<32)
	r := &runnerv1.Record{Seq: a.AcceptedSeq + 1, AtUs: time.Now().UnixMicro(), Kind: &runnerv1.Record_Result{
		Result: &runnerv1.Result{Status: protocol.ResultSucceeded, Output: "{}"}}}
	return &runnerv1.ReportRequest{AttemptId: a.ID.String(), Fence: int64(fence), Epoch: m.epoch, Records: []*runnerv1.Record{r}}
}

// secondClaim asks for what this machine holds, or was offered, as another
// supervisor. INV-14.
func (m *machine) secondClaim(a execution.Attempt) (string, func(ctx context.Context, e *engine.Engine) error) {
	nonce := m.name + "-forged"
	return "a second claim", func(ctx context.Context, e *engine.Engine) error {
		resp, err := e.Claim(ctx, m.caller, &runnerv1.ClaimRequest{AttemptId: a.ID.String(), Epoch: m.epoch, BootNonce: nonce})
		if err == nil {
			m.s.claimed(a.ID, m, nonce, resp.Terms)
		}
		return err
	}
}

// stolen presents the capability of another machine at the broker. INV-10.
func (m *machine) stolen() (string, func(ctx context.Context, e *engine.Engine) error) {
	s := m.s
	for _, other := range s.machines {
		for _, e := range other.entries {
			if token := e.terms.GetCapability(); other != m && token != "" && s.broker.up {
				return "a stolen capability", func(context.Context, *engine.Engine) error {
					if _, err := s.broker.admit(m.thumb, token); err == nil {
						s.violate("INV-10: %s is admitted with a capability of %s", m.name, other.name)
					}
					return nil
				}
			}
		}
	}
	return "", nil
}

// overreach asks for an attempt of another machine, with all that is true of it.
// INV-9.
func (m *machine) overreach(a execution.Attempt) (string, func(ctx context.Context, e *engine.Engine) error) {
	id, fence, c := a.ID.String(), int64(a.Fence), m.caller
	var do func(ctx context.Context, e *engine.Engine) error
	var what string
	switch m.s.rng.IntN(6) {
	case 0:
		what, do = "claim", func(ctx context.Context, e *engine.Engine) error {
			_, err := e.Claim(ctx, c, &runnerv1.ClaimRequest{AttemptId: id, Epoch: m.epoch, BootNonce: a.BootNonce})
			return err
		}
	case 1:
		what, do = "report", func(ctx context.Context, e *engine.Engine) error {
			req := m.forged(a)
			req.Fence = fence
			_, err := e.Report(ctx, c, req)
			return err
		}
	case 2:
		what, do = "decline", func(ctx context.Context, e *engine.Engine) error {
			return e.Decline(ctx, c, &runnerv1.DeclineRequest{AttemptId: id, Epoch: m.epoch, Reason: "no"})
		}
	case 3:
		what, do = "blob", func(ctx context.Context, e *engine.Engine) error {
			return e.BlobStored(ctx, c, a.ID, a.Fence, "sha256:of-something", 1)
		}
	case 4:
		what, do = "files", func(ctx context.Context, e *engine.Engine) error {
			return e.MayGetBlob(ctx, c, a.ID, a.Fence, "sha256:of-something")
		}
	default:
		what, do = "renew", func(ctx context.Context, e *engine.Engine) error {
			resp, err := e.Renew(ctx, c, &runnerv1.RenewRequest{Epoch: m.epoch, Leases: []*runnerv1.HeldLease{{AttemptId: id, Fence: fence}}})
			if len(resp.GetLeases()) > 0 {
				m.s.violate("INV-9: %s renews %s, which is another machine's", m.name, id)
			}
			if err == nil {
				err = absentHere
			}
			return err
		}
	}
	return what + " of " + id, func(ctx context.Context, e *engine.Engine) error {
		err := do(ctx, e)
		if protocol.CodeOf(err) != protocol.CodeStaleFence { // it is not connected there any more
			m.s.foreign(what+" by a machine that it is not for", err)
		}
		return nil
	}
}

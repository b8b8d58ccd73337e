//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// stormPerson is a principal with a machine, and a client of each server.
type stormPerson struct {
	*person
	servers   []*client.Client
	workspace string // digest of a project that was uploaded; empty: this one does not code
}

// ask calls one server after another until one answers, as a client that retries.
// A refusal that no retry mends is the answer, too.
func (p *stormPerson) ask(ctx context.Context, rnd *rand.Rand, call func(context.Context, *client.Client) error) error {
	for i := rnd.IntN(len(p.servers)); ; i++ {
		err := p.once(ctx, i, call)
		if err == nil || ctx.Err() != nil {
			return err
		}
		var answer *connect.Error // anything else is a connection that broke
		switch code := protocol.CodeOf(protocol.FromConnect(err)); {
		case code.Retryable(), code == protocol.CodeOutcomeUnknown, code == protocol.CodeDeadlineExceeded:
		case errors.As(err, &answer):
			return fmt.Errorf("%s: %w", p.name, err)
		}
		pause(ctx, time.Duration(5+rnd.IntN(40))*time.Millisecond)
	}
}

// once gives up on an answer that does not come.
func (p *stormPerson) once(ctx context.Context, i int, call func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return call(ctx, p.servers[i%len(p.servers)])
}

// work has one session after another, until the load stops. Each has one to three
// turns of these kinds, some waiting behind another, and somebody who reads along.
func (s *storm) work(ctx context.Context, p *stormPerson, name, agent string, rnd *rand.Rand, kinds ...string) error {
	for n := 0; ; n++ {
		select {
		case <-s.over:
			return nil
		default:
		}
		if err := s.session(ctx, p, agent, rnd, fmt.Sprintf("%s-%d", name, n), kinds); err != nil {
			return err
		}
	}
}

func (s *storm) session(ctx context.Context, p *stormPerson, agent string, rnd *rand.Rand, name string, kinds []string) error {
	var id string
	err := p.ask(ctx, rnd, func(ctx context.Context, c *client.Client) error {
		res, err := c.Sessions.CreateSession(ctx, &apiv1.CreateSessionRequest{Agent: agent, IdempotencyKey: name})
		if err == nil && id != "" && id != res.GetSession().GetId() {
			return fmt.Errorf("session %s is also %s", id, res.GetSession().GetId())
		}
		id = res.GetSession().GetId()
		return err
	})
	if err != nil {
		return err
	}
	read := s.opened(p, id)
	var readers sync.WaitGroup
	defer readers.Wait()
	reading, enough := context.WithCancel(ctx)
	defer enough()
	readers.Go(func() { s.readAlong(reading, p, id, rnd.IntN(len(p.servers)), read) })
	var turns []string
	for i := range 1 + rnd.IntN(3) {
		turn, err := s.send(ctx, p, rnd, id, fmt.Sprintf("%s-%d", name, i), kinds[rnd.IntN(len(kinds))])
		if err != nil {
			return err
		}
		turns = append(turns, turn)
		if rnd.IntN(3) > 0 {
			if err := s.await(ctx, p, rnd, turn); err != nil {
				return err
			}
		}
	}
	for _, turn := range turns {
		if err := s.await(ctx, p, rnd, turn); err != nil {
			return err
		}
	}
	return nil
}

// send submits a turn, and one in five times once more under the same id: then it
// has to be the same turn. It may change its mind later.
func (s *storm) send(ctx context.Context, p *stormPerson, rnd *rand.Rand, session, tag, kind string) (string, error) {
	m := &apiv1.SubmitTurnRequest{SessionId: session, MessageId: tag, Prompt: kind + " " + tag}
	if kind == "code" || kind == "line" {
		m.WorkspaceDigest = p.workspace
	}
	one := sent{message: tag}
	for range 1 + rnd.IntN(5)/4 {
		err := p.ask(ctx, rnd, func(ctx context.Context, c *client.Client) error {
			res, err := c.Turns.SubmitTurn(ctx, m)
			if err == nil {
				one.turns = append(one.turns, res.GetTurn().GetId())
			}
			return err
		})
		if err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	s.sent = append(s.sent, one)
	s.mu.Unlock()
	turn := one.turns[0]
	if rnd.IntN(10) == 0 {
		pause(ctx, time.Duration(rnd.IntN(1500))*time.Millisecond)
		return turn, p.ask(ctx, rnd, func(ctx context.Context, c *client.Client) error {
			_, err := c.Turns.CancelTurn(ctx, &apiv1.CancelTurnRequest{TurnId: turn})
			if protocol.CodeOf(protocol.FromConnect(err)) == protocol.CodeFailedPrecondition {
				return nil // it has ended
			}
			return err
		})
	}
	return turn, nil
}

// await waits for a turn's end; what its actions come to is looked at afterwards.
func (s *storm) await(ctx context.Context, p *stormPerson, rnd *rand.Rand, turn string) error {
	for {
		var ended bool
		err := p.ask(ctx, rnd, func(ctx context.Context, c *client.Client) error {
			res, err := c.Turns.GetTurn(ctx, &apiv1.GetTurnRequest{TurnId: turn})
			ended = res.GetTurn().GetEndedAt() != nil
			return err
		})
		if err != nil || ended {
			return err
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// readAlong follows a session through every break, at one server, and notes what it
// is shown.
func (s *storm) readAlong(ctx context.Context, p *stormPerson, session string, server int, into *stormSession) {
	err := p.servers[server].Watch(ctx, session, 0, func(m *apiv1.WatchEventsResponse) error {
		if e := m.GetEvent(); e != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			if into.shown[e.GetSeq()] != "" {
				into.twice++
			}
			into.shown[e.GetSeq()] = fmt.Sprintf("%x", e.GetHash())
		}
		return nil
	})
	if ctx.Err() == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		into.refused = fmt.Sprint("the stream ended: ", err)
	}
}

// approve decides whatever a person is asked.
func (p *stormPerson) approve(ctx context.Context, rnd *rand.Rand) {
	c := p.servers[rnd.IntN(len(p.servers))]
	asked, err := c.Approvals.ListApprovals(ctx, &apiv1.ListApprovalsRequest{})
	if err != nil {
		return
	}
	for _, a := range asked.GetApprovals() {
		_, _ = c.Approvals.DecideApproval(ctx, &apiv1.DecideApprovalRequest{ApprovalId: a.GetId(), Digest: a.GetDigest(), Approve: true}) // asked again otherwise
	}
}

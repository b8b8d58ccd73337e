//go:build linux

package failover

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// pace is how long a person waits before the next message.
const pace = 75 * time.Millisecond

// person admits one turn after another in a session of their own. They hold the
// product's client for each of the two servers, stay with one as long as it answers,
// and send the same message to the other when it does not. They take each turn back
// once it is acknowledged: a full queue would have them wait for something else.
type person struct {
	servers [2]*client.Client
	at      int // the server that answered last
	name    string
	session string

	mu      sync.Mutex // guards below
	answers []answer
}

// answer says that a server acknowledged a message.
type answer struct {
	message, turn string
	server        int
	at            time.Time
}

// newPerson adds a principal, since each has a queue of its own, and opens a session.
func (r *run) newPerson(ctx context.Context, n int) (*person, error) {
	p := &person{name: fmt.Sprint("person-", n)}
	added, err := r.stack.API.Principals.AddPrincipal(ctx, &apiv1.AddPrincipalRequest{Name: p.name, Kind: "user"})
	if err != nil {
		return nil, err
	}
	for i, url := range []string{r.stack.URL(), r.stack.SecondURL()} {
		if p.servers[i], err = client.New(client.Config{URL: url, Token: added.GetToken()}); err != nil {
			return nil, err
		}
	}
	s, err := p.servers[0].Sessions.CreateSession(ctx, &apiv1.CreateSessionRequest{Agent: "keeper", IdempotencyKey: p.name})
	p.session = s.GetSession().GetId()
	return p, err
}

func (p *person) close() {
	for _, c := range p.servers {
		if c != nil {
			c.Close()
		}
	}
}

// admit sends messages until nobody wants more. After a move to the other server the
// last message that the first one acknowledged is sent once more: it has to be known.
func (p *person) admit(ctx context.Context, more func() bool) error {
	last, from := "", p.at // acknowledged, and by which
	for n := 0; more(); n++ {
		message := fmt.Sprint(p.name, "-", n)
		turn, err := p.send(ctx, message)
		if err == nil && p.at != from && last != "" {
			_, err = p.send(ctx, last)
		}
		if err != nil {
			return err
		}
		last, from = message, p.at
		if _, err := p.servers[p.at].Turns.CancelTurn(ctx, &apiv1.CancelTurnRequest{TurnId: turn}); away(err) {
			p.at = 1 - p.at
		}
		op.Sleep(ctx, pace)
	}
	return nil
}

// away reports a server that gave no answer.
func away(err error) bool {
	code := protocol.CodeOf(err)
	return err != nil && (code.Retryable() || code == protocol.CodeOutcomeUnknown)
}

// send gets a message acknowledged, by whichever server, as a turn.
func (p *person) send(ctx context.Context, message string) (turn string, err error) {
	for {
		res, err := p.servers[p.at].Turns.SubmitTurn(ctx, &apiv1.SubmitTurnRequest{SessionId: p.session, MessageId: message, Prompt: "note it"})
		if err == nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			turn = res.GetTurn().GetId()
			p.answers = append(p.answers, answer{message, turn, p.at, time.Now()})
			return turn, nil
		}
		if ctx.Err() != nil || !away(err) || protocol.CodeOf(err) == protocol.CodeQueueFull {
			return "", fmt.Errorf("%s, message %s: %w", p.name, message, err)
		}
		p.at = 1 - p.at
		op.Sleep(ctx, time.Millisecond)
	}
}

// after says when a server first acknowledged a message of this person after an instant.
func (p *person) after(at time.Time, server int) (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.answers {
		if a.server == server && a.at.After(at) {
			return a.at, true
		}
	}
	return time.Time{}, false
}

// stored reads the person's turns back, by message.
func (p *person) stored(ctx context.Context) (map[string][]string, error) {
	out := map[string][]string{}
	page := &apiv1.Page{Limit: 200}
	for {
		res, err := p.servers[p.at].Turns.ListTurns(ctx, &apiv1.ListTurnsRequest{SessionId: p.session, Page: page})
		if err != nil {
			return nil, err
		}
		for _, t := range res.GetTurns() {
			out[t.GetMessageId()] = append(out[t.GetMessageId()], t.GetId())
		}
		if page.Cursor = res.GetNextCursor(); page.GetCursor() == "" {
			return out, nil
		}
	}
}

// everybody does something for each of them at once.
func (r *run) everybody(ctx context.Context, do func(context.Context, *person) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, p := range r.people {
		g.Go(func() error { return do(ctx, p) })
	}
	return g.Wait()
}

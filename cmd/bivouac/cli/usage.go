package cli

import (
	"context"
	"fmt"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// settlesIn is how long a person who watched a turn waits for what it cost. A
// call that was cut off is settled by the broker a moment after its turn ended.
const settlesIn = 2 * time.Second

// usageText says what a turn used, over all its attempts, as the broker counted
// it. INV-19.
func usageText(t *apiv1.Turn) string {
	text := fmt.Sprintf("%d tokens in, %d out, %.6f USD", t.GetInputTokens(), t.GetOutputTokens(), float64(t.GetCostMicroUsd())/1e6)
	if t.GetEndedAt() != nil && !t.GetUsageFinal() {
		text += " (usage not final yet)"
	}
	return text
}

// settledTurn reads a turn that ended after an event, when what it used is final;
// if that takes longer than a moment, as it is.
func (a *app) settledTurn(ctx context.Context, c *client.Client, t *apiv1.Turn, after int64) (*apiv1.Turn, error) {
	ask := &apiv1.GetTurnRequest{TurnId: t.GetId()}
	res, err := c.Turns.GetTurn(ctx, ask)
	if err != nil || res.GetTurn().GetUsageFinal() {
		return res.GetTurn(), err
	}
	moment, cancel := context.WithTimeout(ctx, settlesIn)
	defer cancel()
	// How it ends does not matter: the turn itself says whether it is final.
	_ = c.Watch(moment, t.GetSessionId(), after, func(m *apiv1.WatchEventsResponse) error {
		if e := m.GetEvent(); e.GetTurnId() == t.GetId() && e.GetType() == "usage.settled" {
			return errEnded
		}
		return nil
	})
	res, err = c.Turns.GetTurn(ctx, ask)
	return res.GetTurn(), err
}

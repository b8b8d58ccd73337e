package cli

import (
	"context"
	"fmt"
	"strings"

	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// another begins a session in place of one that takes no more.
const another = "begin another one: bivouac chat --new, or bivouac run"

// asked is what to look at where no model answered.
const asked = "bivouac doctor says whether the provider of the route can be reached, and bivouac-broker doctor where the broker runs; then send it again"

// nextOf are what a person can do after a turn that ended for a reason, where its
// message does not say it.
var nextOf = map[string]string{
	"model_not_found":    "see the route of model in bivouac agents show " + agentName + ": broker.hcl must have a route of that name (restart bivouac-broker, or bivouac dev, after a change: bivouac doctor says whether one is due), and its provider the model that the route names",
	"model_auth":         "where the provider refused its key, set it anew: bivouac credential set NAME; where the message names a grant, the agent needs another: bivouac grant create --agent " + agentName + "; bivouac doctor says of each route whether its provider can be reached and took the last key",
	"model_unavailable":  asked,
	"model_failed":       asked,
	"not_placed":         "why each machine did not take it, and what would change that: bivouac edge list, bivouac doctor",
	"session_revoked":    another,
	"session_closed":     another,
	"session_ended":      another,
	"session_expired":    another,
	"instance_recreated": another,
	"grant_revoked":      "an admin may allow the agent again: bivouac grant create --agent " + agentName,
}

// agentName stands in a command for the agent of the turn.
const agentName = "AGENT"

// nextOf a turn, with its agent's name in the command.
func (a *app) nextOf(ctx context.Context, t *apiv1.Turn) string {
	next := nextOf[t.GetReason()]
	if t.GetState() == "COMPLETED" || !strings.Contains(next, agentName) {
		return next
	}
	got, err := a.api.Sessions.GetSession(ctx, &apiv1.GetSessionRequest{SessionId: t.GetSessionId()})
	if name := got.GetSession().GetAgent(); err == nil && name != "" {
		next = strings.ReplaceAll(next, agentName, plain(name))
	}
	return next
}

// tellVersion says that a session goes on with an older definition of its agent
// than there is now. What it cannot find out it does not say.
func (a *app) tellVersion(ctx context.Context, c *client.Client, s *apiv1.Session) {
	if a.json {
		return
	}
	got, err := c.Agents.GetAgent(ctx, &apiv1.GetAgentRequest{Name: s.GetAgent()})
	if now := got.GetAgent(); err == nil && now.GetDigest() != s.GetAgentDigest() {
		fmt.Fprintf(a.err, "note: this session keeps the definition of %s that it began with; version %d counts for new ones: bivouac chat --new --agent %s\n", s.GetAgent(), now.GetVersion(), s.GetAgent())
	}
}

package session

import "bivouac/server/steptable"

// Mermaid draws the tables of this package, by the name of their block in
// ARCHITECTURE.md.
func Mermaid() map[string]string {
	return map[string]string{
		"session":  steptable.Mermaid(SessionNext, States, Open),
		"turn":     steptable.Mermaid(TurnNext, TurnStates, Queued),
		"action":   steptable.Mermaid(ActionNext, ActionStates, Intended, AwaitingApproval, Denied),
		"approval": steptable.Mermaid(ApprovalNext, ApprovalStates, ApprovalPending),
	}
}

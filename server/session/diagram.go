package session

import "bivouac/server/machine"

// Mermaid draws the tables of this package, by the name of their block in
// ARCHITECTURE.md.
func Mermaid() map[string]string {
	return map[string]string{
		"session":  machine.Mermaid(SessionNext, States, Open),
		"turn":     machine.Mermaid(TurnNext, TurnStates, Queued),
		"action":   machine.Mermaid(ActionNext, ActionStates, Intended, AwaitingApproval, Denied),
		"approval": machine.Mermaid(ApprovalNext, ApprovalStates, ApprovalPending),
	}
}

package execution

import "bivouac/server/machine"

// Mermaid draws the tables of this package, by the name of their block in
// ARCHITECTURE.md.
func Mermaid() map[string]string {
	return map[string]string{
		"attempt": machine.Mermaid(AttemptNext, AttemptStates, AttemptQueued),
		"runner":  machine.Mermaid(RunnerNext, RunnerStates, RunnerActive),
	}
}

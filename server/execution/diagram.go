package execution

import "bivouac/server/steptable"

// Mermaid draws the tables of this package, by the name of their block in
// ARCHITECTURE.md.
func Mermaid() map[string]string {
	return map[string]string{
		"attempt": steptable.Mermaid(AttemptNext, AttemptStates, AttemptQueued),
		"runner":  steptable.Mermaid(RunnerNext, RunnerStates, RunnerActive),
	}
}

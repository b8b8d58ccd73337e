//go:build bug_no_intent

package engine

const (
	plantedNoIntent = true
	plantedNoClaim  = false
)

//go:build bug_no_claim && !bug_no_intent

package engine

const (
	plantedNoIntent = false
	plantedNoClaim  = true
)

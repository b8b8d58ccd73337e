//go:build !bug_no_intent && !bug_no_claim

package engine

// Bugs that a build tag plants, so that tests prove that they would find them.
const (
	plantedNoIntent = false // dispatch before the intent is durable
	plantedNoClaim  = false // a claim that accepts anybody
)

//go:build bug_no_claim

package engine

// plantedNoClaim accepts a claim of an attempt that another supervisor holds.
const plantedNoClaim = true

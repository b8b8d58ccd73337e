//go:build !bug_no_claim

package engine

// plantedNoClaim is a bug that the build tag bug_no_claim plants: the claim's
// compare-and-set is passed over, so that anybody gets the lease.
const plantedNoClaim = false

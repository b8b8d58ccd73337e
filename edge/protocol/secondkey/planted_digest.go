//go:build bug_any_digest

package secondkey

// plantedAnyDigest lets a decision count for whatever it is said to be about.
const plantedAnyDigest = true

//go:build !bug_no_intent && !bug_no_claim && !bug_any_digest

package sim

// tagged: this build has a bug of its own.
const tagged = false

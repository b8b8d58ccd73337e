//go:build bug_no_claim && !bug_no_intent

package sim

// planted is the bug that this build has, and what finds it.
const planted, foundBy = "bug_no_claim", "INV-14"

//go:build !bug_no_intent && !bug_no_claim

package sim

// planted is the bug that this build has, and what finds it.
const planted, foundBy = "", ""

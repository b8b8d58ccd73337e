// Package policy holds what may be done: agent definitions, profiles, the
// snapshot that activation freezes, the accepted set of tools, approval rules
// and the digests that approvals bind. It is pure: HCL and JSON come in as
// bytes, decisions go out as values.
//
// It guarantees that authority only narrows on its way down (INV-10) and that
// nothing falls back to a weaker placement, provider or credential (INV-11).
// It refuses to fetch, store or remember anything.
package policy

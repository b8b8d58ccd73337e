// Package planted names the bugs that a test may plant in the product, to prove
// that it would find them. In a normal build there is none, and the compiler
// drops what asks for one; built with the tag "planted", BIVOUAC_PLANTED chooses
// one by its name. Each is one guard that is passed over, in the room where the
// guard is, and breaks one invariant.
package planted

// Bug is the name of one.
type Bug string

// Bugs by the invariant that each breaks. Those of INV-4 and INV-14 have build
// tags of their own, bug_no_intent and bug_no_claim, and so has that of INV-6 on a
// machine, bug_any_digest: its guard is where no server reaches.
const (
	None       Bug = ""
	Order      Bug = "order"      // INV-1: the newest prompt of a session goes first
	Exit       Bug = "exit"       // INV-2: late evidence changes an outcome that was final
	Fence      Bug = "fence"      // INV-3: records count under any fence
	Failure    Bug = "failure"    // INV-5: what nobody knows is called a failure
	Digest     Bug = "digest"     // INV-6: a decision counts whatever was shown
	Slice      Bug = "slice"      // INV-7: a turn that waits for a person keeps its budget
	Chain      Bug = "chain"      // INV-8: events of one batch hang on the same event
	Foreign    Bug = "foreign"    // INV-9: machines are answered about others' attempts
	Wide       Bug = "wide"       // INV-10: an action's capability allows the model, too
	Mint       Bug = "mint"       // INV-13: what was taken back is minted for
	Duplicate  Bug = "duplicate"  // INV-15: a known message is answered whatever it says now
	Generation Bug = "generation" // INV-16: work of an earlier generation goes on
	Cleanup    Bug = "cleanup"    // INV-18: nobody is asked to close the slice of a turn that ended
	Budget     Bug = "budget"     // INV-19: a top-up looks at the slice alone
	Clock      Bug = "clock"      // INV-20: leases are measured by the wall clock
)

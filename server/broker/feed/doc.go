// Package feed follows a server's feed: the floors below which a capability is
// refused, the statements about signing keys, and how old that knowledge is.
//
// It guarantees that Age never says less than the time since the server's store
// was last read: an alive connection, a server whose store hangs, a delayed
// message, a suspended machine and a changed clock all make it older or start it
// anew. Time is elapsed time with suspend counted; the server's clock enters by
// its differences alone (INV-20). A statement counts only under the root's
// signature.
//
// It refuses nothing itself: the broker asks Age, Now, Key and Below before every
// request. Apply and Begin are the whole logic without a network, so that a
// simulation can drive it. Test it with go test alone.
package feed

package engine

import "bivouac/edge/protocol"

// calls are the gateway actions that this incarnation has under way: from before
// the commit that marks them as dispatched until their outcome is applied. A
// dispatched action that is not here was left by an earlier process.
type calls = set[protocol.ActionID]

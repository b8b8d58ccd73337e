package protocol

// A package request of sandboxed code, from a relay to a broker: the method of the
// request is that of the registry's, and so are its body and answer. What it is
// about stands in headers, so that no log of paths holds it.
const (
	EgressPath = "/bivouac.broker.v1.Egress/Fetch"
	// EgressCapability under which it is made.
	EgressCapability = "Bivouac-Capability"
	// EgressDestination is the name of the broker's destination.
	EgressDestination = "Bivouac-Destination"
	// EgressTarget is path and query at the registry.
	EgressTarget = "Bivouac-Target"
	// EgressCode is the code of a refusal, in an answer that is not the registry's.
	EgressCode = "Bivouac-Error-Code"
)

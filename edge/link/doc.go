// Package link is how the product's processes reach each other: one address,
// HTTP/3 over QUIC raced with HTTP/2 over TLS 1.3, mutual certificates under one
// pinned root.
//
// It owns dialling, the race, keep-alive, the choice of transport, moves between
// transports, tunnels, what each kind of stream carried, and the listener for both.
// It guarantees that a Client talks only to a peer whose
// chain ends at the pinned root and whose certificate names the expected role,
// that a network without UDP costs a short head start, that a dead peer is
// noticed in about three seconds, that a move settles the new connection before the
// old one drains, and that a handler learns who calls from
// PeerFrom alone. QUIC 0-RTT and TLS session tickets are off: every connection
// proves its key again.
//
// Where a second proof is asked for (Vouch), a connection carries nothing before both
// sides gave theirs, bound to its own keys; a new proof goes over the open connection.
//
// It refuses to resend a request: what was sent may have arrived, and only the
// caller's idempotency keys and cursors can tell. All sockets come through
// Network, so that a test gives it a simulated one.
package link

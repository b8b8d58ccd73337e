// Package worker is the host inside sandbox A: one inherited socket, one
// attempt's spec, and the adapter that the spec names.
//
// It guarantees that it dials nothing, executes nothing and reads no workspace:
// model calls, tool calls and progress are requests to the supervisor, over
// HTTP/2 on the one connection, which it never makes anew. It holds no
// credential and knows no other attempt (INV-12).
//
// Adapters: native drives edge/runtime/loop; scripted makes fixed steps for
// tests. tool/ holds the fixed workspace tools, which the same binary runs in
// sandbox B; outward/ stands beside a command there. Test it with a HostService in
// process.
package worker

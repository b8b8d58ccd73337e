// Package ssh runs one declared command on one declared host, from the broker, for a
// tool of kind "ssh".
//
// It owns the command's line, the connection and what is read of the answer. It
// guarantees that an argument is one word, or a part of one, and never a second command
// or an option that nobody declared, nor more than a plain name where a program that it
// knows reads code; that a call's key is the call's own, in the command and in its look-
// up; that a host is known by a pinned key or by a pinned authority, never by its first
// answer; that it is asked with the certificate of this action alone, and given no
// password; that a host which would let anybody in is not asked at all; that nothing of
// the broker is reachable through the connection (no agent, no forwarding, no terminal);
// and that the caller learns whether the command may have run: gateway.NotSent is
// certain, anything else after the request is outcome_unknown (INV-5). What comes back
// is redacted (INV-17) and bounded in bytes and time, and where its end was lost that is
// said.
//
// What is run stands in the broker's own file; an agent's definition names it and cannot
// widen it. It knows no capability and no call log. Test it with go test alone.
package ssh

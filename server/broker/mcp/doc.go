// Package mcp is the broker's client of MCP servers, over streamable HTTP, or over the
// standard streams of a program that it starts in a sandbox: one session for one call,
// with the official SDK above a transport of its own.
//
// It guarantees that a server decides nothing. A tool is called by its exact name
// and only while the server lists it, once, with the input schema that the
// definition was accepted with; what a server says of itself (descriptions,
// annotations, list_changed) widens nothing and reaches no model. A tools/call is
// sent at most once by one Session: nothing is resumed, retried or redirected, and
// the caller learns whether it may have left (gateway.NotSent is certain, INV-5).
// The credential goes into one header of each request and is in nothing that comes
// back (INV-17). Every answer is bounded in bytes, messages, tools and depth before
// the SDK sees it.
//
// A program gets a sandbox of its own for each session, without network, environment or
// credential (INV-12), and is ended with everything it started. Of what it writes only
// whole messages are read, within the same bounds.
//
// It refuses what a server may ask of a client (sampling, elicitation, roots, input
// for a call that waits), batches, answers to other requests, unknown methods, and
// every content type but JSON and event streams. Resources and prompts are never
// asked for. It knows no capability and no call log.
//
// A session lives for one call, so nothing that a server keeps for one principal
// can reach another, and a revocation has nothing left to close. Test it with go
// test alone.
package mcp

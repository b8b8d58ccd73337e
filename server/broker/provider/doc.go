// Package provider speaks the wire formats of model providers: neutral requests
// in, neutral answers out. It has three: OpenAI Chat Completions, OpenAI
// Responses and Anthropic Messages (format.go is the table of them).
//
// It guarantees which source enters in which role: only the system message at
// the head of the request becomes system text, what tools returned goes out as
// tool results, and a request that mixes them is refused (the golden requests in
// testdata prove it for every format). It never follows a redirect, never holds a
// delta back unless it may begin the key, bounds what it reads and how long it
// waits, and removes the key from everything that comes back (INV-17). A request
// whose key would be missing, or leave as a placeholder, is not sent.
//
// A call that was sent and failed is a *Failure: how far it came, what it used,
// and what the table in rules.go says of it: whether the same request may be sent
// again, and what is owed. Complete itself makes one try. Errors have the code
// that tells the loop what to do: retry, give up, wait.
//
// It knows no capability, budget or price. Test it with go test alone; the suite
// modeltest runs every format against the scripted provider.
package provider

import (
	"context"

	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/secret"
)

// Call is one model call, admitted and priced by the caller.
type Call struct {
	// Model as the provider names it.
	Model string
	// Request in neutral words; its limit of output tokens is set.
	Request *runtimev1.ModelRequest
	// Key for the header of Config.Binding. Zero where the route names no
	// credential; otherwise nothing is sent without it.
	Key secret.Value
	// Retired are values that the credential had before. They are not sent, and
	// removed from what comes back as the key is.
	Retired []secret.Value
}

// Usage as a provider counted it. CacheRead and CacheWrite are parts of Input.
type Usage struct {
	Input, CacheRead, CacheWrite, Output int64
	// Counted is false when the provider did not say.
	Counted bool
}

// Answer of a provider.
type Answer struct {
	Message *runtimev1.Message
	Stop    runtimev1.StopReason
	Usage   Usage
}

// Port is what the broker asks of a provider. onDelta gets text as it comes; its
// error ends the call.
type Port interface {
	Complete(ctx context.Context, c Call, onDelta func(text string) error) (*Answer, error)
}

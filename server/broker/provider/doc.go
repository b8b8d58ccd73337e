// Package provider speaks the wire formats of model providers: neutral requests
// in, neutral answers out. OpenAI Chat Completions is the first format.
//
// It guarantees which source enters in which role: only the system message of
// the request becomes system text, what tools returned goes out as tool
// messages, and a request that mixes them is refused (the golden requests in
// testdata prove it). It never follows a redirect, never holds a delta back
// unless it may begin the key, bounds what it reads, and removes the key from
// everything that comes back (INV-17). Errors have the code that tells the loop
// what to do: retry, give up, wait.
//
// It knows no capability, budget or price. Test it with go test alone; the suite
// modeltest runs it against the scripted provider.
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
	// Key for the Authorization header; zero sends none.
	Key secret.Value
}

// Answer of a provider.
type Answer struct {
	Message *runtimev1.Message
	Stop    runtimev1.StopReason
	// Usage as the provider counted; Counted is false when it did not.
	InputTokens, OutputTokens int64
	Counted                   bool
}

// Port is what the broker asks of a provider. onDelta gets text as it comes; its
// error ends the call.
type Port interface {
	Complete(ctx context.Context, c Call, onDelta func(text string) error) (*Answer, error)
}

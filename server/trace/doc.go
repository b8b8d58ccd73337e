// Package trace shows turns as OpenTelemetry traces, from the prompt's admission
// into the sandbox and back. It owns the trace context (W3C traceparent) of a
// turn and the way from a turn's durable events to spans.
//
// Spans are made of what the server has recorded, when the turn has ended: the
// record has an instant of the server's clock for everything that happened, on
// whichever machine. So neither the runner nor the worker links an SDK or speaks
// to a collector, no clock of a runner can bend a trace, and what a trace says is
// what the ledger says. They get the trace context all the same, and pass it on:
// to the broker in the capability, to sandboxed code as TRACEPARENT.
//
// It guarantees that no prompt, answer, argument, result or message is in a span:
// ids, tools' references, states and codes are. Exporting is off unless an
// endpoint is configured, never delays a turn, and loses spans rather than wait:
// at most queueSize turns are held. It refuses other signals: metrics are a page,
// logs are slog's. Test it with go test alone.
package trace

// Package server assembles the control plane: store, engine, broker link, the
// public API and the listener for machines, in one process. It owns the order
// in which they start and stop, the configuration, readiness, and the bootstrap
// of the first principal. It holds no decision.
//
// It guarantees that New starts nothing; that Run says within a moment when a
// port or the data directory is taken; that /readyz is true only when a turn can
// really be taken; and that a stop takes seconds, whatever waits, because what
// waits is durable. It refuses a public listener in the clear beyond loopback.
// Test it with go test alone.
package server

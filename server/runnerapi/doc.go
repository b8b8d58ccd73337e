// Package runnerapi is the listener for machines: the RunnerService for
// runners, and the FeedService for brokers, behind mutual TLS.
//
// It guarantees that a runner is who its certificate says, never who a request
// says; that a revoked or unknown runner is told to enrol again; that mail is
// sent in order after a cursor and kept until it was acknowledged; and that the
// feed names the time of a completed read of the store, never a mere sign of
// life. Decisions are the engine's. It refuses bearers and knows no people. Test
// it with go test alone.
package runnerapi

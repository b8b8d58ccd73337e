// Package sim is the seeded simulation: one server (the real engine on a real
// SQLite store), one broker (the real call log, budget ledger and feed behind a
// small front), one or two runners, a scripted model and the people who use it,
// driven by one goroutine from one queue of events, in virtual time.
//
// A seed decides everything: what people ask for, how long each message takes,
// which are lost, doubled or late, who crashes at which labelled step or sleeps
// for a minute, and which link is cut for how long. After every step the store and the outside world are
// held against the invariants, with faults on; then the faults end, and every
// turn must come to its end. The same seed gives the same trace, line by line.
//
// It guarantees that a violation is printed with its seed and the steps before
// it, and that nothing in it sleeps in real time. It refuses goroutines: an op of
// the engine is a coroutine that the queue resumes. Call Run inside a
// testing/synctest bubble; test it with
//
//	go test ./test/sim -run TestSeeds -seeds 200
//	go test ./test/sim -run TestSeeds -seed 4711 -v
package sim

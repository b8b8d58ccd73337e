// Package sim is the seeded simulation: two servers (the real engine, twice) on
// one real SQLite store, one broker (the real call log, budget ledger and feed
// behind a small front), three machines of two people, a scripted model and the
// people who use it, and a stranger, driven by one goroutine from one queue of
// events, in virtual time.
//
// A seed decides everything: what people ask for, how long each message takes,
// which are lost, doubled, late or overtaken, who crashes at which labelled step
// or sleeps for a minute, which link is cut for how long (people, servers,
// database, broker, feed and machines, each pair by itself), which commit runs
// twice, finds the disk full or loses its reply on either side of COMMIT, which
// wake-up between servers is lost, whose clock is set, what is approved, denied,
// taken back, and what somebody with the key of a machine, or with identifiers of
// other people, says to the servers that is not true. In two of five seeds the owner
// of a machine holds a second key over device actions, turns or both, and answers in
// time, late, twice, both ways, or with the digest of something else. A seed is at
// least 500 events with at least 5 faults; one that falls short fails.
//
// After every step the store and the outside world are held against the
// invariants, with faults on: INV-1 to INV-10, INV-13 to INV-16, INV-18 to INV-20.
// What is minted is looked at by a witness beside the signer. Then the faults end,
// and every turn must come to its end with nothing owed. The same seed gives the
// same trace, line by line, and its digest.
//
// It guarantees that a violation is printed with its seed and the steps before it,
// that the seed is kept in testdata/seeds, and that nothing in it sleeps in real
// time. It refuses goroutines: an op of the engine is a coroutine that the queue
// resumes. A machine is a model of edge, with edge/lease as it is. Call Run inside
// a testing/synctest bubble; test it with
//
//	make sim SEEDS=200
//	make planted
//	go test ./test/sim -run TestSeeds -seed 4711 -v
package sim

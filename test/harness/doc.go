// Package harness is the whole system in one process and in virtual time: a
// server on SQLite, a broker with its keyring, a scripted provider and a small
// tool API behind it, and edge daemons with their supervisors. They speak real
// HTTP/3 over a simulated network inside a testing/synctest bubble, so that
// leases, back-offs and deadlines pass in no time and can be asserted exactly.
//
// It owns how the parts are put together for tests, cables that can be cut,
// parts that can be stopped, killed and started again, and a record of what every
// part logged and when. Everything that a person does goes through the public
// API with the product's own client. It guarantees that nothing of a world runs
// when its test ends, and that a part which ends by itself with an error fails
// the test.
//
// What would not block durably in a bubble has a twin in this process: sandboxes
// are functions (edge/sandbox/twin), supervisors are loops behind pipes, path
// files are an in-memory source. Only git is a real program.
//
// A test is
//
//	harness.Test(t, harness.Options{Script: script}, func(t *testing.T, w *harness.World) {
//		alice := w.Person("alice")
//		alice.Apply(agent)
//		w.Edge("a")
//		turn := alice.Submit(alice.Open("coder"), "m1", "do it")
//		w.Partition("a")
//		…
//	})
//
// It refuses real sockets, real sleeps and judgements of speed.
package harness

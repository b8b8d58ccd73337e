// Package workload judges the workload identities of Nomad with which runners enrol.
// It owns the keys that Nomad signs them with, by their ids and for a while, and the
// rules by which an identity stands for a machine of somebody's.
//
// It guarantees that what it answers was signed by a key of that Nomad, is in force by
// this machine's clock, is of a task that a rule names with the audience that the rule
// names, and names the node that it runs on. It refuses what has no end or lives too
// long, the identities of services, and claims that Nomad left as they were written. It
// asks Nomad for nothing but its public keys, with no token, and decides nothing about a
// runner. Test it with go test alone; the tests of jobs have it judge what a real Nomad
// signs.
package workload

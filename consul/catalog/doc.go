// Package catalog keeps one process of Bivouac in Consul's catalog: as a service of an
// agent, with a health check whose time to live the process feeds with its own readiness.
//
// It guarantees that the check passes only while the process said so within the time to
// live, so that a process that was killed or hangs is critical soon after; that a process
// that stops in order takes its service out; that an agent which has lost the service, or a
// token that was replaced, has it registered anew; and that a Consul that is away stops
// nothing: the catalog decides what others find, and never what Bivouac may do. A restart
// takes the place of the instance that was there. It refuses an address that names no
// machine. Test it with go test alone; real_test.go runs it on a real agent.
package catalog

// Package e2e proves promises of the product on the product: real binaries, real
// processes, real sandboxes, as a person runs them. The processes are test/e2e/stack's;
// the tests here break them and look at what the outside world saw.
package e2e

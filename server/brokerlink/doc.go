// Package brokerlink is the server's side of the trust between server and
// broker: the enrolment with a single-use code, the server's own key and
// certificate, the hourly signing key that the broker's root certifies, and
// every call that the server makes to the broker. It implements the engine's
// Broker port.
//
// It guarantees that nothing is sent before the broker proved that it hangs
// from the pinned root; that the TLS key stays the same over renewals, so that
// capabilities keep their presenter; and that the signing key never touches a
// disk. It refuses to interpret: capabilities and ciphertext pass through. Test
// it with go test alone: the tests run a small real broker.
package brokerlink

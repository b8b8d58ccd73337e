//go:build linux

// Package consulserver runs real Consul servers for tests. It owns a server from its
// first start to its end: its folder, its certificate, and its management token.
//
// It guarantees that a server listens on the loopback alone, serves HTTPS under an
// authority made for it, has access control with default deny, and is a cluster of one;
// that its management token is in this process's memory and in the server's own store,
// and nowhere else; that it knows nothing of the developer's environment; and that it is
// gone, with its folder, when the test binary is. Faults are refused on the server that
// tests share.
//
// A package that uses it has
//
//	func TestMain(m *testing.M) { os.Exit(consulserver.Main(m)) }
//
// and begins its tests with Each. Names that a test makes begin with what Server.Prefix
// gives it.
package consulserver

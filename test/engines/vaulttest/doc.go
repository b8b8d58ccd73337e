//go:build linux

// Package vaulttest runs real Vault and OpenBao servers for tests. It owns a server
// from its first start to its end: its folder, its certificate authority, its key
// shares and its root token.
//
// It guarantees that a server listens on the loopback alone, with TLS under an
// authority made for it; that its unseal key and root token are in this process's
// memory and nowhere else; that it knows nothing of the developer's environment; and
// that it is gone, with its folder, when the test binary is. Faults (stop, kill, seal,
// audit) are refused on the server that tests share.
//
// A package that uses it has
//
//	func TestMain(m *testing.M) { os.Exit(vaulttest.Main(m)) }
//
// and begins its tests with Each, which runs them on every engine that is here and
// says which is not. Names that a test makes begin with what Server.Prefix gives it.
package vaulttest

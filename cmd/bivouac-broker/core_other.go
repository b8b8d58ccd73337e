//go:build !linux && !darwin

package main

// noCore has nothing to turn off: no system but Linux and macOS is known to write core
// files of a broker.
func noCore() error { return nil }

// Package protocol holds what a runner and the server must agree on: typed
// identifiers, fences, error codes, the words of offers and results, and the
// capability version. The generated runner contract is in runnerv1.
//
// It guarantees that an identifier of the wrong kind fails where it is parsed,
// that an error code means the same at every seam, and that two sides of
// different age agree on one capability version or say why they cannot.
// It refuses state, I/O and knowledge of sessions. Test it with go test alone.
package protocol

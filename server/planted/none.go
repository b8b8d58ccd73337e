//go:build !planted

package planted

// Chosen is the bug of this build.
const Chosen = None

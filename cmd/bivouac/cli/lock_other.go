//go:build !unix

package cli

import "os"

// The server runs on Unix only, and with it bivouac dev.
func lockFile(*os.File) error { return nil }

//go:build planted

package planted

import "os"

// Chosen is the bug of this run.
var Chosen = Bug(os.Getenv("BIVOUAC_PLANTED"))

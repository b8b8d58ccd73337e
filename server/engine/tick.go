package engine

import "context"

// Tick is one loop's body. Do makes one pass: it never blocks on anything but
// the store, and says whether there was something to do.
type Tick struct {
	Name string
	Do   func(ctx context.Context) (worked bool, err error)
}

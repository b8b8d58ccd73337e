package engine

// bell wakes one tick from inside the engine. It holds one wake-up: more would
// say nothing more.
type bell chan struct{}

func newBell() bell { return make(bell, 1) }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

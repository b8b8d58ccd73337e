//go:build !faults

package fault

// Here marks a step.
func Here(Label) {}

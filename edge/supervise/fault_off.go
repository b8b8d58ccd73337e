//go:build !faults

package supervise

// faultEnv and faultSaid let a test stop a worker at a label; see fault_on.go.
func faultEnv() []string { return nil }

func faultSaid(string) {}

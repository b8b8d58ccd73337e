package keyring

// Quick has passphrases cost next to nothing, and BeforeRekeyStep sees each step.
func init() { workFactor = 2 }

// BeforeRekeyStep is called before each file that a rekey writes.
func BeforeRekeyStep(f func(name string)) (undo func()) {
	old := rekeyStep
	rekeyStep = f
	return func() { rekeyStep = old }
}

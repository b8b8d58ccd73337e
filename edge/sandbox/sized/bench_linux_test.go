package sized

import "testing"

// BenchmarkMount is what a volume adds to the start of an attempt.
func BenchmarkMount(b *testing.B) {
	scratch, dir := b.TempDir(), b.TempDir()
	for b.Loop() {
		v, err := Mount(b.Context(), scratch, dir, 4<<30)
		if err != nil {
			b.Skip(err)
		}
		b.StopTimer()
		if err := v.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

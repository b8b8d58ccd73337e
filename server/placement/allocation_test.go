package placement

import "testing"

// What no node has for one turn is said with the most that one has; what one node has in
// all is not, nor anything of nodes that nobody knows.
func TestNoRoom(t *testing.T) {
	const gib = 1 << 30
	asks := Resources{CPUMillis: 2000, MemoryBytes: gib, DiskBytes: gib}
	small, large := Resources{CPUMillis: 1250, MemoryBytes: 4 * gib, DiskBytes: gib / 2}, Resources{CPUMillis: 4000, MemoryBytes: gib / 2, DiskBytes: gib}
	for want, nodes := range map[string][]Resources{
		"": nil,
		"cpu_millis is 2000, and no node has more than 1250 for one turn; disk is 1024MiB, and no node has more than 512MiB for one turn": {small, small},
		"memory is 1024MiB, and no node has more than 512MiB for one turn":                                                                {large},
		"no single node has its cpu_millis, memory and disk for one turn":                                                                 {small, large},
	} {
		if got := NoRoom(asks, nodes); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got := NoRoom(asks, append(nodes, asks)); got != "" {
			t.Errorf("beside one that has it: %q", got)
		}
	}
	if got := NoRoom(asks, []Resources{{CPUMillis: 2000, MemoryBytes: gib, DiskBytes: -1}}); got != "disk is 1024MiB, and no node has more than 0MiB for one turn" {
		t.Errorf("of a node that is too small for anything: %q", got)
	}
}

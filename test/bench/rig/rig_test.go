package rig_test

import (
	"testing"

	"bivouac/edge/protocol"
	"bivouac/test/bench/rig"
)

// The short form of the measurement: every way of taking authority ends all of its
// streams and none of the others, each with its own code. How fast is not judged
// here. INV-13.
func TestCuts(t *testing.T) {
	r, err := rig.Start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	const n = 40
	cuts, err := r.Cuts(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]protocol.Code{"revoke": protocol.CodePermissionDenied, "flip": protocol.CodePolicyDenied}
	for _, c := range cuts {
		if len(c.After) != n || c.Kept != c.Others || c.Others == 0 {
			t.Errorf("%s: %d streams ended, %d of %d others are open", c.Name, len(c.After), c.Kept, c.Others)
		}
		if code, ok := want[c.Name]; ok && c.Ends[code] != n {
			t.Errorf("%s: streams ended with %v", c.Name, c.Ends)
		}
		if c.Ends[""] != 0 {
			t.Errorf("%s: %d streams ended as if they were whole", c.Name, c.Ends[""])
		}
	}
	if len(cuts) != 3 {
		t.Errorf("%d ways", len(cuts))
	}
	o, err := r.Overhead(t.Context(), 10)
	if err != nil || len(o.Direct) != 10 || len(o.FirstThrough) != 10 {
		t.Errorf("%+v, %v", o, err)
	}
}

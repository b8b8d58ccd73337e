package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// What the runner dials is in its enrolment. A start without it, which is free to
// move the server, does not change that, and the next one with it is refused before
// it remembers anything; without the runner it goes on.
func TestDevKeepsTheAddressOfItsRunner(t *testing.T) {
	const dials = "127.0.0.1:17401"
	try := func(data, runner string, noEdge bool) (*dev, error) {
		d := &dev{app: &app{err: new(bytes.Buffer)}, data: data, noEdge: noEdge,
			public: "127.0.0.1:0", runner: runner, broker: "127.0.0.1:0", model: "127.0.0.1:0"}
		return d, d.addresses()
	}
	data := t.TempDir()
	if err := writePrivate(filepath.Join(data, "edge", "enrolment.json"), []byte(`{"server":"`+dials+`","runner_id":"run_1"}`)); err != nil {
		t.Fatal(err)
	}
	moved, err := try(data, "127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(data, "addresses.json"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = try(data, moved.runner, false)
	if protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Fatalf("the runner dials another address, and dev starts: %v", err)
	}
	for _, want := range []string{"dials the server at " + dials, "use --runner " + dials, "--no-edge", "bivouac-edge leave --state " + filepath.Join(data, "edge")} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said: %v", want, err)
		}
	}
	if after, err := os.ReadFile(filepath.Join(data, "addresses.json")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("a refused start remembers addresses: %s, then %s (%v)", before, after, err)
	}
	if _, err := try(t.TempDir(), "127.0.0.1:0", false); err != nil {
		t.Errorf("a first start with the runner: %v", err)
	}
	if err := writePrivate(filepath.Join(data, "edge", "enrolment.json"), []byte(`{"server":"`+moved.runner+`","runner_id":"run_1"}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := try(data, moved.runner, false); err != nil {
		t.Errorf("at the address that the runner dials: %v", err)
	}
}

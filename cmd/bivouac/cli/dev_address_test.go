package cli

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// An API beyond loopback is refused before anything is remembered, and the words of
// a process that ended are passed on without its code.
func TestDevServesItsAPIHereOnly(t *testing.T) {
	for address, want := range map[string]protocol.Code{"0.0.0.0:0": protocol.CodeInvalidArgument, "192.0.2.1:0": protocol.CodeFailedPrecondition, "127.0.0.1:0": "", "localhost:0": ""} {
		d := &dev{app: &app{err: new(bytes.Buffer)}, data: t.TempDir(), public: address, runner: "127.0.0.1:0", broker: "127.0.0.1:0", model: "127.0.0.1:0"}
		err := d.addresses()
		if (err == nil) != (want == "") || err != nil && protocol.CodeOf(err) != want {
			t.Errorf("%s: %v", address, err)
		}
		if _, kept := os.Stat(d.path("addresses.json")); (kept == nil) != (want == "") {
			t.Errorf("%s: remembered: %v", address, kept)
		}
	}
	for words, want := range map[string]string{"bad [invalid_argument]\n": "bad", "see a[1]": "see a[1]", "at [::]": "at [::]", "plain": "plain"} {
		if got := lastLines([]byte(words), nil); got != want {
			t.Errorf("%q became %q", words, got)
		}
	}
}

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
	for _, want := range []string{"dials the server at " + dials, "start it as the last time: `bivouac dev --data " + data + " --public " + moved.public + " --runner " + dials + " --broker " + moved.broker + " --model " + moved.model + "`", "--no-edge", "bivouac-edge leave --state " + filepath.Join(data, "edge")} {
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

// A start without an address is one like the last, at the address that the runner
// dials; one with an address takes the usual others.
func TestDevStartsAsTheLastTime(t *testing.T) {
	data, said := t.TempDir(), new(bytes.Buffer)
	try := func(bare bool, public string) *dev {
		d := &dev{app: &app{err: said}, data: data, bare: bare,
			public: public, runner: "127.0.0.1:0", broker: "127.0.0.1:0", model: "127.0.0.1:0"}
		if err := d.addresses(); err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := try(true, "127.0.0.1:0")
	if said.Len() > 0 {
		t.Errorf("a first start says %q", said)
	}
	again := &dev{app: &app{err: said}, data: data, bare: true, public: "127.0.0.1:7400", runner: "127.0.0.1:7401", broker: "127.0.0.1:7402", model: "127.0.0.1:7403"}
	if err := again.addresses(); err != nil || again.public != first.public || again.runner != first.runner || again.broker != first.broker || again.model != first.model {
		t.Errorf("started at %s, %s, %s, %s: %v", again.public, again.runner, again.broker, again.model, err)
	}
	if !strings.Contains(said.String(), "no address was given: started as the last time, by "+filepath.Join(data, "addresses.json")) {
		t.Errorf("it says %q", said)
	}
	other := "127.0.0.1:0"
	if err := settle("public", &other, false); err != nil {
		t.Fatal(err)
	}
	if named := try(false, other); named.public != other {
		t.Errorf("an address that is given does not count: %s", named.public)
	}
}

// A port that another program has names who says which, and a free one of the same
// address, which works; not where the runner of this machine dials the taken one.
func TestDevSaysWhichOtherPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	data := t.TempDir()
	try := func(runner string, noEdge bool) error {
		d := &dev{app: &app{err: new(bytes.Buffer)}, data: data, noEdge: noEdge,
			public: "127.0.0.1:0", runner: runner, broker: "127.0.0.1:0", model: "127.0.0.1:0"}
		return d.addresses()
	}
	busy := l.Addr().String()
	err = try(busy, false)
	if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "ss -lntup 'sport = :"+strings.TrimPrefix(busy, "127.0.0.1:")+"'") || strings.Contains(err.Error(), "--no-edge") {
		t.Fatalf("a taken port: %v", err)
	}
	_, other, _ := strings.Cut(err.Error(), "--runner 127.0.0.1:")
	_, other, ok := strings.Cut(other, "--runner ")
	if !ok {
		t.Fatalf("no other port is named: %v", err)
	}
	if err := try(other, false); err != nil {
		t.Errorf("the port that was named, %s: %v", other, err)
	}
	if err := writePrivate(filepath.Join(data, "edge", "enrolment.json"), []byte(`{"server":"`+busy+`","runner_id":"run_1"}`)); err != nil {
		t.Fatal(err)
	}
	if err := try(busy, false); err == nil || !strings.Contains(err.Error(), "--no-edge") {
		t.Errorf("the address that the runner dials: %v", err)
	}
}

// What is no address of a machine is refused with one that is.
func TestAddressesOfDevAreWhole(t *testing.T) {
	for value, want := range map[string]string{
		"127.0.0.1":         "has no port: write it as HOST:PORT, such as --runner 127.0.0.1:7401",
		"::1":               "such as --runner [::1]:7401",
		"":                  "such as --runner 127.0.0.1:7401",
		"127.0.0.1:99999":   "has no usable port",
		"127.0.0.1:x":       "such as --runner 127.0.0.1:7401",
		"127.0.0.1:":        "has no usable port",
		"host.invalid:7401": "ip -brief address",
		"127.0.0.1:0":       "",
		":7401":             "",
		"[::1]:7401":        "",
	} {
		err := addressed("runner", value)
		if want == "" && err != nil || want != "" && (protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", value, err, want)
		}
	}
}

package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge"
	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// A machine without a link fails the probe, in JSON as well; one with a link does not,
// whichever it is.
func TestProbed(t *testing.T) {
	d, err := state.At(filepath.Join(t.TempDir(), "edge"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		s    edge.Status
		want string
		code protocol.Code
	}{
		"QUIC":      {edge.Status{Connected: true, Transport: "http/3"}, "the link runs over http/3", ""},
		"TCP":       {edge.Status{Connected: true, Transport: "http/2", QUICProblem: "no answer"}, "stays on http/2: no answer", ""},
		"no link":   {edge.Status{Server: "203.0.113.9:7401", LastError: "no answer"}, "not connected to 203.0.113.9:7401: no answer; what is in the way says: bivouac-edge doctor --state " + d.Path(), protocol.CodeUnavailable},
		"not tried": {edge.Status{}, "still trying", protocol.CodeUnavailable},
	} {
		for _, asJSON := range []bool{false, true} {
			var out bytes.Buffer
			err := probed(&out, d, c.s, asJSON)
			said := out.String()
			if err != nil {
				said += err.Error()
			}
			if c.code == "" && err != nil || c.code != "" && protocol.CodeOf(err) != c.code || strings.HasPrefix(out.String(), "{") != asJSON || (!asJSON || err != nil) && !strings.Contains(said, c.want) {
				t.Errorf("%s, JSON %t: %v, %q", name, asJSON, err, out.String())
			}
		}
	}
}

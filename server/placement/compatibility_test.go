package placement

import (
	"slices"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
)

// Every way in which a worker does not fit the record has its words and what mends it;
// what fits, by version, by protocol and for the turn that is asked, is given turns.
func TestMisfit(t *testing.T) {
	records := []Record{{Harness: "native", Oldest: "0.3.0", OldestProtocol: 2, NewestProtocol: 3, Egress: true}, {Harness: "plain", Oldest: "1.0.0", OldestProtocol: 1, NewestProtocol: 1, Resumes: true}}
	with := func(name, version string, proto int32) execution.Facts {
		return execution.Facts{Version: version, Adapters: []string{name}, Harnesses: []execution.Harness{{Name: name, Version: version, Protocol: proto}}}
	}
	for name, c := range map[string]struct {
		q          execution.Requirements
		have       execution.Facts
		says, mend string // empty: it fits
	}{
		"the oldest":           {execution.Requirements{Adapter: "native"}, with("native", "0.3.0", 2), "", ""},
		"newer":                {execution.Requirements{Adapter: "native", Egress: true}, with("native", "1.12.0", 3), "", ""},
		"after a release":      {execution.Requirements{Adapter: "native"}, with("native", "0.3.1-4-gabcdef", 2), "", ""},
		"without a version":    {execution.Requirements{Adapter: "native"}, with("native", "dev", 2), "", ""},
		"too old":              {execution.Requirements{Adapter: "native"}, with("native", "0.2.9", 2), "its worker is native 0.2.9 (protocol 2), and turns need 0.3.0", "install bivouac-edge 0.3.0"},
		"an old protocol":      {execution.Requirements{Adapter: "native"}, with("native", "dev", 1), "this server speaks 2 to 3", "install bivouac-edge"},
		"a newer protocol":     {execution.Requirements{Adapter: "native"}, with("native", "9.0.0", 4), "this server speaks 2 to 3", "update bivouac-server"},
		"from before":          {execution.Requirements{Adapter: "native"}, execution.Facts{Version: "0.1.0", Adapters: []string{"native"}}, "bivouac-edge 0.1.0 does not say which worker", "install bivouac-edge 0.3.0"},
		"no row":               {execution.Requirements{Adapter: "other"}, with("other", "1.0.0", 1), "no record of the harness other", "update bivouac-server"},
		"resumes":              {execution.Requirements{Adapter: "plain", Resumes: true}, with("plain", "1.0.0", 1), "", ""},
		"cannot resume":        {execution.Requirements{Adapter: "native", Resumes: true}, with("native", "1.0.0", 2), "cannot go on from a checkpoint", "anew"},
		"no way to registries": {execution.Requirements{Adapter: "plain", Egress: true}, with("plain", "1.0.0", 1), "no way to registries", "remove egress"},
	} {
		r := Misfit(records, c.q, c.have)
		if (r == nil) != (c.says == "") || r != nil && (r.Code != ReasonHarness || !strings.Contains(r.Text, c.says) || !strings.Contains(r.Remedy, c.mend)) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// Every adapter that a definition may ask for has one row, which admits this build.
func TestRecordIsWhole(t *testing.T) {
	var rows []string
	for _, r := range Compatibility {
		rows = append(rows, r.Harness)
		have := execution.Facts{Adapters: []string{r.Harness}, Harnesses: []execution.Harness{{Name: r.Harness, Version: r.Oldest, Protocol: protocol.WorkerProtocol}}}
		if why := Outdated(have); len(why) != 0 {
			t.Errorf("%s: %+v", r.Harness, why)
		}
		have.Harnesses[0].Protocol = 0
		if why := Outdated(have); len(why) != 1 {
			t.Errorf("%s of protocol 0 is admitted", r.Harness)
		}
	}
	if slices.Sort(rows); !slices.Equal(rows, protocol.Adapters) {
		t.Errorf("rows of %v, adapters %v", rows, protocol.Adapters)
	}
}

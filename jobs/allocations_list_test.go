package jobs_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/jobs"
)

// A job of which Nomad does not say why it is as it is stands in the list all the same: one
// that cannot be explained keeps no allocation from others.
func TestListWithoutAWord(t *testing.T) {
	for _, name := range []string{"allocation no room", "allocation failed"} {
		for _, silent := range []bool{false, true} {
			r, a := recordedAllocations(t, name, own)
			if silent {
				maps.DeleteFunc(r.all, func(asked string, _ exchange) bool { return strings.Contains(asked, "/allocations?") })
			}
			all, err := a.List(t.Context())
			asked := 0
			for _, is := range all {
				if is.Stopped {
					continue // nobody is waiting for a word on it
				}
				asked++
				if (is.Said.Text == "") != silent || !is.Waits && !is.Ended {
					t.Errorf("%s, silent %t: %+v", name, silent, is)
				}
			}
			if err != nil || asked == 0 {
				t.Errorf("%s, silent %t: %+v, %v", name, silent, all, err)
			}
		}
	}
}

// crowd is a namespace with many jobs of others, and one of this deployment on the last page.
type crowd struct{ others int }

func (c crowd) RoundTrip(q *http.Request) (*http.Response, error) {
	size, err := strconv.Atoi(q.URL.Query().Get("per_page"))
	if err != nil {
		return nil, err
	}
	from, _ := strconv.Atoi(q.URL.Query().Get("next_token")) // none at first
	var b bytes.Buffer
	b.WriteByte('[')
	for i := from; i < min(from+size, c.others); i++ {
		fmt.Fprintf(&b, `{"ID":"bivouac-other-%d","Status":"running"},`, i)
	}
	header := http.Header{"X-Nomad-Index": {"1"}, "X-Nomad-Lastcontact": {"0"}}
	if from+size < c.others {
		header.Set("X-Nomad-NextToken", strconv.Itoa(from+size))
		b.Truncate(b.Len() - 1)
	} else {
		fmt.Fprintf(&b, `{"ID":%q,"Status":"running","Meta":{"bivouac_deployment":%q}}`, protocol.AllocationJob("att_00000000000000000000000001", 1), own)
	}
	b.WriteByte(']')
	return &http.Response{StatusCode: http.StatusOK, Header: header, ContentLength: -1, Body: io.NopCloser(&b), Request: q}, nil
}

// Jobs of others whose names begin alike are looked through and not kept, and of too many
// the list says what helps. A part of a list is none: what is missing in it would count as
// gone.
func TestListAmongOthers(t *testing.T) {
	list := func(others int) ([]jobs.Allocated, error) {
		return of(jobs.Config{Address: "https://nomad.example.org:4646", Token: "t", Rules: rules, Transport: crowd{others}}, own).List(t.Context())
	}
	if all, err := list(1000); err != nil || len(all) != 1 {
		t.Errorf("among a thousand: %+v, %v", all, err)
	}
	if all, err := list(60_000); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "nomad job status -namespace agents") || len(all) != 0 {
		t.Errorf("among sixty thousand: %+v, %v", all, err)
	}
}

// placed are the allocations of one job, oldest first: which nodes they are on, and how.
type placed [][2]string

func (p placed) RoundTrip(q *http.Request) (*http.Response, error) {
	var all []string
	for i, at := range p {
		all = append(all, fmt.Sprintf(`{"ID":"%08d-0000-0000-0000-000000000000","Namespace":"agents","NodeID":%q,"NodeName":"name-of-%[2]s","DesiredStatus":"run","ClientStatus":%q,"CreateIndex":%[1]d}`, i+1, at[0], at[1]))
	}
	header := http.Header{"X-Nomad-Index": {"1"}, "X-Nomad-Lastcontact": {"0"}}
	return &http.Response{StatusCode: http.StatusOK, Header: header, ContentLength: -1, Body: io.NopCloser(strings.NewReader("[" + strings.Join(all, ",") + "]")), Request: q}, nil
}

// What is said of a job is what became of it where its turn is. What Nomad has placed on
// another node is named, and not taken for it.
func TestExplainPlacedElsewhere(t *testing.T) {
	for _, c := range []struct {
		is     placed
		says   string
		remedy string
	}{
		{placed{{"alpha", "running"}}, "it runs", "00000001"},
		{placed{{"alpha", "lost"}, {"alpha", "running"}}, "it runs", "00000002"},
		{placed{{"alpha", "lost"}, {"beta", "running"}}, "Nomad lost it with its node; Nomad has placed it again, on node name-of-beta, where its turn is not", "00000001"},
		{placed{{"alpha", "unknown"}, {"beta", "complete"}}, "Nomad does not know whether it runs: its node is out of reach; Nomad has placed it again, on node name-of-beta, where its turn is not", "00000001"},
		{placed{{"alpha", "lost"}, {"beta", "lost"}, {"alpha", "running"}}, "it runs", "00000003"},
		{placed{{"beta", "running"}}, "it runs, on node name-of-beta, where its turn is not", "00000001"},
	} {
		a := of(jobs.Config{Address: "https://nomad.example.org:4646", Token: "t", Rules: rules, Transport: c.is}, own)
		said, err := a.Explain(t.Context(), machineOf("alpha"), "bivouac-x-1")
		if err != nil || said.Text != c.says || said.Remedy != "nomad alloc status -namespace agents "+c.remedy {
			t.Errorf("%v: %+v, %v; want %q", c.is, said, err, c.says)
		}
	}
}

package jobs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/jobs"
	"bivouac/jobs/workload"
)

// recording writes the exchanges of the tests with a real Nomad into testdata/recorded:
// make engines-record.
var recording = flag.Bool("record", false, "write what a real Nomad answers into testdata/recorded")

// exchange is one question and what a real Nomad answered.
type exchange struct {
	Method string            `json:"method"`
	URL    string            `json:"url"` // path and query
	Status int               `json:"status"`
	Header map[string]string `json:"header,omitempty"`
	Body   json.RawMessage   `json:"body,omitempty"`
	Text   string            `json:"text,omitempty"` // of a body that is no JSON
}

// recorder keeps the newest answer to each question.
type recorder struct {
	to http.RoundTripper

	mu   sync.Mutex // guards below
	last map[string]exchange
}

func (r *recorder) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context())
	q.Header.Del("Accept-Encoding") // so that the carrier unpacks what comes
	res, err := r.to.RoundTrip(q)
	if err != nil || strings.HasSuffix(q.URL.Path, "/event/stream") {
		return res, err
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if err := res.Body.Close(); err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	x := exchange{Method: q.Method, URL: q.URL.RequestURI(), Status: res.StatusCode, Header: map[string]string{}}
	for _, name := range []string{"X-Nomad-Index", "X-Nomad-Knownleader", "X-Nomad-Lastcontact", "Content-Type"} {
		if v := res.Header.Get(name); v != "" {
			x.Header[name] = v
		}
	}
	if json.Valid(body) {
		x.Body = body
	} else {
		x.Text = string(body)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[string]exchange{}
	}
	r.last[x.Method+" "+x.URL] = x
	return res, nil
}

// save writes what was answered, without the folder of the test.
func (r *recorder) save(t *testing.T, name, folder string) {
	t.Helper()
	if !*recording {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []exchange
	for _, x := range r.last {
		all = append(all, trimmed(t, x))
	}
	slices.SortFunc(all, func(a, b exchange) int { return strings.Compare(a.Method+a.URL, b.Method+b.URL) })
	b, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.ReplaceAll(b, []byte(folder), []byte("/var/lib/nomad"))
	if err := os.MkdirAll("testdata/recorded", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(recordedFile(name), append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// trimmed is an exchange without what Nomad says of the machine that it was recorded on.
func trimmed(t *testing.T, x exchange) exchange {
	t.Helper()
	if !strings.HasPrefix(x.URL, "/v1/node/") {
		return x
	}
	var node map[string]json.RawMessage
	if err := json.Unmarshal(x.Body, &node); err != nil {
		return x // no node, but a refusal
	}
	for _, name := range []string{"Attributes", "Links", "Meta"} {
		delete(node, name)
	}
	b, err := json.Marshal(node)
	if err != nil {
		t.Fatal(err)
	}
	x.Body = b
	return x
}

func recordedFile(name string) string {
	return filepath.Join("testdata", "recorded", strings.ReplaceAll(name, " ", "_")+".json")
}

// replayer answers as Nomad did, or not at all while it is down.
type replayer struct {
	mu    sync.Mutex // guards below
	all   map[string]exchange
	down  bool
	asked int
}

func (r *replayer) RoundTrip(q *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x, ok := r.all[q.Method+" "+q.URL.RequestURI()]
	switch {
	case r.down:
		return nil, errors.New("connection refused")
	case strings.HasSuffix(q.URL.Path, "/event/stream"):
		return nil, errors.New("events were not recorded")
	case !ok:
		return nil, errors.New("nobody asked for " + q.URL.RequestURI())
	}
	r.asked++
	body := []byte(x.Text)
	if x.Body != nil {
		body = x.Body
	}
	header := http.Header{}
	for name, value := range x.Header {
		header.Set(name, value)
	}
	return &http.Response{StatusCode: x.Status, Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: q}, nil
}

// replay reads what was recorded under a name.
func (r *replayer) replay(t *testing.T, name string) {
	t.Helper()
	b, err := os.ReadFile(recordedFile(name))
	if err != nil {
		t.Fatal(err)
	}
	var all []exchange
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = map[string]exchange{}
	for _, x := range all {
		r.all[x.Method+" "+x.URL] = x
	}
}

func (r *replayer) setDown(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

// node is the one of a recording.
func (r *replayer) node(t *testing.T) string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var nodes []struct{ ID string }
	for key, x := range r.all {
		if strings.HasPrefix(key, "GET /v1/nodes") {
			if err := json.Unmarshal(x.Body, &nodes); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(nodes) == 0 {
		return "00000000-0000-0000-0000-000000000000"
	}
	return nodes[0].ID
}

// rules is what enrol in server.hcl would say.
var rules = []workload.Rule{{Name: "agents", Audience: "bivouac.example.org", Namespace: "agents", Job: "bivouac-runner", Task: "edge", Tenant: tenant, Principal: "ops"}}

// machineOf is the machine of the runner's task on a node.
func machineOf(node string) string {
	return workload.Identity{Namespace: "agents", Job: "bivouac-runner", Task: "edge", Node: node}.Machine()
}

// watched are the states of a node and its task that were recorded, in their order, and
// what is said of each.
var watched = []struct{ name, node, task string }{
	{"down", "is down", ""},
	{"up again", "", ""},
	{"failed task", "", "it failed on its node"},
	{"running task", "", ""},
	{"ineligible", "takes nothing new (ineligible)", ""},
	{"eligible", "", ""},
	{"disconnected", "out of Nomad's reach (disconnected)", "does not know whether it runs"},
	{"back", "", ""},
	{"drained", "(ineligible)", "Nomad has stopped it"},
}

// watching runs a watch over recorded answers, of a server that makes so many allocations.
func watching(t *testing.T, r *replayer, most int) *jobs.Watch {
	t.Helper()
	w := jobs.NewWatch(jobs.Config{Address: "https://nomad.example.org:4646", Token: "t", Rules: rules, Transport: r, MaxAllocations: most}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return w
}

// What was recorded of each state of a node is read as it was when it was recorded.
func TestRecordedStates(t *testing.T) {
	for _, state := range watched {
		synctest.Test(t, func(t *testing.T) {
			r := &replayer{}
			r.replay(t, state.name)
			w := watching(t, r, 0)
			synctest.Wait()
			n, task := w.Standing(machineOf(r.node(t)))
			if !strings.Contains(n.Text, state.node) || (state.node == "") != (n.Text == "") || !strings.Contains(task.Text, state.task) || (state.task == "") != (task.Text == "") {
				t.Errorf("%s: node %q, task %q", state.name, n.Text, task.Text)
			}
			if (n.Text == "") != (n.Remedy == "") || (task.Text == "") != (task.Remedy == "") {
				t.Errorf("%s: %+v %+v", state.name, n, task)
			}
		})
	}
}

// Lists are read again without an event. While Nomad is away nothing is taken from the
// choice for long, and a node that it no longer lists is said to be purged.
func TestWatchWithoutNomad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &replayer{}
		r.replay(t, "ineligible")
		machine := machineOf(r.node(t))
		w := watching(t, r, 0)
		says := func(want string) {
			t.Helper()
			synctest.Wait()
			if n, _ := w.Standing(machine); !strings.Contains(n.Text, want) || (want == "") != (n.Text == "") {
				t.Errorf("%q, want %q", n.Text, want)
			}
		}
		says("ineligible")
		r.setDown(true)
		time.Sleep(time.Minute)
		says("ineligible")
		time.Sleep(90 * time.Second)
		says("")
		r.replay(t, "running task")
		r.setDown(false)
		time.Sleep(35 * time.Second)
		if n, _ := w.Standing(machineOf(r.node(t))); n.Text != "" {
			t.Errorf("back: %q", n.Text)
		}
		if n, _ := w.Standing(machineOf("ffffffff-7e1a-3f65-9c1e-5a2b6d7e8f90")); !strings.Contains(n.Text, "purged") {
			t.Errorf("a node that is not listed: %q", n.Text)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := &replayer{down: true}
		w := watching(t, r, 0)
		time.Sleep(time.Hour)
		if n, task := w.Standing(machineOf("ffffffff-7e1a-3f65-9c1e-5a2b6d7e8f90")); n.Text != "" || task.Text != "" {
			t.Errorf("never listed: %q %q", n.Text, task.Text)
		}
	})
}

package intentions

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"bivouac/consul/client"
	"bivouac/edge/protocol"
)

// l4 is an intention as Consul's API gives it.
func l4(source, destination, action string) map[string]any {
	return map[string]any{
		"ID": "", "SourceNS": "default", "SourceName": source, "DestinationNS": "default", "DestinationName": destination, "SourceType": "consul",
		"Action": action, "Precedence": 9, "SourcePartition": "default", "DestinationPartition": "default", "CreateIndex": 7, "ModifyIndex": 9,
	}
}

func l7(source, destination string, permissions ...map[string]any) map[string]any {
	i := l4(source, destination, "")
	i["Permissions"] = permissions
	return i
}

// cluster is a scripted Consul: it holds questions as a server does.
type cluster struct {
	mu      sync.Mutex // guards below
	index   uint64
	all     []map[string]any
	broken  error
	hold    bool // false: it answers at once, whatever it is asked
	asked   []question
	changed chan struct{}
}

type question struct {
	index uint64
	at    time.Time
}

func newCluster(all ...map[string]any) *cluster {
	return &cluster{index: 10, all: all, hold: true, changed: make(chan struct{})}
}

// set changes what is so, at an index.
func (c *cluster) set(index uint64, all ...map[string]any) {
	c.change(func() { c.index, c.all = index, all })
}

func (c *cluster) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// questions since the last call.
func (c *cluster) questions() []question {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.asked
	c.asked = nil
	return out
}

func (c *cluster) Match(ctx context.Context, destination string, index uint64, wait time.Duration) (client.Answer, error) {
	c.mu.Lock()
	c.asked = append(c.asked, question{index, time.Now()})
	changed, held := c.changed, c.hold && c.broken == nil && index == c.index
	c.mu.Unlock()
	if held {
		select {
		case <-changed:
		case <-time.After(wait):
		case <-ctx.Done():
			return client.Answer{}, context.Cause(ctx)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return client.Answer{}, c.broken
	}
	about := []map[string]any{}
	for _, i := range c.all {
		if n := i["DestinationName"]; n == destination || n == "*" {
			about = append(about, i)
		}
	}
	body, err := json.Marshal(map[string]any{destination: about})
	return client.Answer{Body: body, Index: c.index}, err
}

// away is what a server that is not there leaves.
var away = protocol.Errorf(protocol.CodeUnavailable, "Consul does not answer")

// watching runs a server over a cluster on the clock of the test, until it ends. News
// arrive on the channel.
func watching(t *testing.T, c *cluster, names ...string) (*Server, <-chan time.Time) {
	t.Helper()
	start := time.Now()
	s, err := New(Params{Source: c, Destinations: names, Elapsed: func() time.Duration { return time.Since(start) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	news, done := make(chan time.Time, 64), make(chan error, 1)
	go func() { done <- s.Run(ctx, func() { news <- time.Now() }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, news
}

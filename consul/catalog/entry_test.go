package catalog

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/consul/client"
	"bivouac/consul/settings"
	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// agent notes what it is asked, and knows a service until it forgets.
type agent struct {
	mu    sync.Mutex
	knows bool
	away  bool
	asked []string
	last  map[string]string // status and output of the check
	times []time.Time
}

func (a *agent) Put(_ context.Context, path string, _ *uint64, body any) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	verb := strings.Split(path, "/")[2]
	a.asked, a.times = append(a.asked, verb), append(a.times, time.Now())
	switch {
	case a.away:
		return &client.Fault{Kind: client.Away, Asked: path, Err: errors.New("nobody there")}
	case verb == "register":
		a.knows = true
	case !a.knows:
		return &client.Fault{Kind: client.Absent, Asked: path}
	case verb == "deregister":
		a.knows = false
	case verb == "update":
		a.last = body.(map[string]string)
	}
	return nil
}

func (a *agent) with(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

func (a *agent) saw(verb string) (n int) {
	a.with(func() {
		for _, v := range a.asked {
			if v == verb {
				n++
			}
		}
	})
	return n
}

func service() settings.Service {
	return settings.Service{Name: "bivouac-broker", TTLText: "15s", DeregisterText: "24h", Meta: map[string]string{"team": "red"}}
}

// The entry over its life in virtual time: registered as critical, passing once the process
// is ready, registered anew where the agent forgot it or the token is another, kept trying
// while the agent is away, and gone after a stop.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{}
		var mu sync.Mutex
		lacks, token := errors.New("no feed yet"), "the-first-token-of-all"
		e, err := New(Params{
			Agent: a, Service: service(), Of: settings.Broker, Instance: "one", Address: "127.0.0.1:7402", Version: "v1",
			Token: func() (secret.Value, error) { mu.Lock(); defer mu.Unlock(); return secret.New(token) },
			Ready: func(context.Context) error { mu.Lock(); defer mu.Unlock(); return lacks },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		is := func(status, output string) {
			t.Helper()
			a.with(func() {
				if a.last["Status"] != status || a.last["Output"] != output {
					t.Errorf("the check says %v, want %s %q", a.last, status, output)
				}
			})
		}
		synctest.Wait()
		is("critical", "no feed yet")
		mu.Lock()
		lacks = nil
		mu.Unlock()
		time.Sleep(unready + time.Millisecond)
		is("passing", "ready")

		time.Sleep(time.Minute)
		if n := a.saw("register"); n != 1 {
			t.Errorf("registered %d times while nothing changed", n)
		}
		if n := a.saw("update"); n < 10 || n > 20 {
			t.Errorf("%d updates in a minute with a time to live of 15s", n)
		}
		a.with(func() { a.knows, a.last = false, nil }) // started anew, with nothing kept
		time.Sleep(6 * time.Second)
		is("passing", "ready")
		mu.Lock()
		token = "the-second-token-of-all"
		mu.Unlock()
		time.Sleep(6 * time.Second)
		if n := a.saw("register"); n != 3 {
			t.Errorf("registered %d times after an agent that forgot and a new token, want 3", n)
		}
		a.with(func() { a.away = true })
		time.Sleep(time.Minute)
		a.with(func() { a.away, a.knows, a.last = false, false, nil })
		time.Sleep(2 * time.Second)
		is("passing", "ready")
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		a.with(func() {
			if a.knows {
				t.Error("a process that stopped in order is still there")
			}
		})
	})
}

// An address that names no machine is refused, and one that is given goes before.
func TestAddress(t *testing.T) {
	for at, want := range map[string]string{"0.0.0.0:7402": "names no machine", ":7402": "names no machine", "[::]:7402": "names no machine", "broker": "missing port", "broker:0": "no port", "broker:7402": ""} {
		_, err := New(Params{Service: service(), Of: settings.Broker, Instance: "one", Address: at})
		if want == "" && err == nil {
			continue
		}
		if want == "" || protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", at, err, want)
		}
	}
	s := service()
	s.Address = "broker.example:7402"
	e, err := New(Params{Service: s, Of: settings.Broker, Instance: "one", Address: "0.0.0.0:7402", Version: "v1"})
	if err != nil || e.body["Address"] != "broker.example" || e.body["Port"] != 7402 || e.ID() != "bivouac-broker-one" {
		t.Errorf("%+v, %v", e, err)
	}
	if meta := e.body["Meta"].(map[string]string); meta["team"] != "red" || meta["version"] != "v1" || meta["process"] != "bivouac-broker" {
		t.Errorf("meta %v", meta)
	}
}

// losing is an agent that does what it is asked to, and whose first answer is lost: the
// process stops before it comes.
type losing struct {
	agent
	took chan struct{}
}

func (l *losing) Put(ctx context.Context, path string, cas *uint64, body any) error {
	err := l.agent.Put(ctx, path, cas, body)
	if err == nil && l.saw("register") == 1 && l.saw("deregister") == 0 {
		close(l.took)
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

// A process that stops while its registration is under way leaves the catalog too, and one
// that has asked for nothing says nothing.
func TestStopWhileItRegisters(t *testing.T) {
	for _, begins := range []bool{true, false} {
		a := &losing{took: make(chan struct{})}
		e, err := New(Params{Agent: a, Service: service(), Of: settings.Broker, Instance: "one", Address: "127.0.0.1:7402"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		if !begins {
			stop()
		}
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		if begins {
			<-a.took
			a.with(func() {
				if !a.knows {
					t.Error("the agent did not take the registration")
				}
			})
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		a.with(func() {
			if a.knows || begins != (len(a.asked) == 2) || !begins && len(a.asked) > 0 {
				t.Errorf("begun %t: it stays in the catalog: %t, after %q", begins, a.knows, a.asked)
			}
		})
	}
}

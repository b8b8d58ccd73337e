//go:build linux

package intentions_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"bivouac/consul/plan"
	"bivouac/test/engines/consulserver"
	"bivouac/test/engines/engine"
)

const (
	agent = "agent-assistant"
	// patience of a test with a busy machine.
	patience = 60 * time.Second
	shortly  = 2 * time.Second
)

// becomes waits until the verdict about a pair is as wanted: allowed, denied, stale or
// unknown.
func (p port) becomes(destination, want, because string) {
	p.t.Helper()
	said := ""
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		d := p.Decide(agent, destination, nil)
		is := map[bool]string{true: "allowed", false: "denied"}[d.Allowed]
		if d.Stale {
			is = "stale"
		}
		if d.Unknown {
			is = "unknown"
		}
		if said = is + " because " + d.Reason; is == want && strings.Contains(d.Reason, because) {
			return
		}
	}
	p.t.Fatalf("%s never became %s (%q): %s", destination, want, because, said)
}

// one server with one destination that the agent may reach, watched by a token of least
// right.
func one(t *testing.T, at *consulserver.Server, address string) (p port, name, token string) {
	t.Helper()
	name = at.Prefix() + "weather"
	write(t, at, pair(agent, name, true))
	token, _ = at.Token(t, plan.Rules([]string{name}), 0)
	return open(t, at, way{address: address, token: token, names: []string{name}, fresh: shortly, grace: 2 * shortly}), name, token
}

// A flip is seen by who watches, both ways; the last intention deleted is a deny, and so
// is one that names a service which Consul does not know.
func TestFlipIsSeen(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Open(t, p)
		s, name, _ := one(t, at, at.Address())
		news := s.run()
		s.becomes(name, "allowed", "the intention "+agent+" => "+name)
		var slowest time.Duration
		for range 10 {
			for _, allow := range []bool{false, true} {
				for len(news) > 0 {
					<-news
				}
				asked := time.Now()
				write(t, at, pair(agent, name, allow))
				select {
				case <-news:
				case <-time.After(patience):
					t.Fatal("a flip was not announced")
				}
				slowest = max(slowest, time.Since(asked))
				if d := s.Decide(agent, name, nil); d.Allowed != allow {
					t.Fatalf("announced, and not counted: %+v", d)
				}
			}
		}
		t.Logf("bench name=%s_flip_to_counted_max value=%.3g unit=ms", p.Name, float64(slowest.Microseconds())/1000)
		write(t, at, pair("no-such-service", name, true))
		s.becomes(name, "denied", "no intention in Consul allows it")
		write(t, at, pair(agent, name, true))
		s.becomes(name, "allowed", "")
		remove(t, at, pair(agent, name, true))
		s.becomes(name, "denied", "no intention in Consul allows it")
	})
}

// A right that is missing is named, and closes what it is about alone. No list hides it.
func TestMissingRightIsNamed(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Open(t, p)
		prefix := at.Prefix()
		seen, hidden := prefix+"seen", prefix+"hidden"
		write(t, at, pair(agent, seen, true), pair(agent, hidden, true))
		token, _ := at.Token(t, plan.Rules([]string{seen}), 0)
		s := open(t, at, way{address: at.Address(), token: token, names: []string{seen, hidden}, fresh: shortly})
		s.run()
		s.becomes(seen, "allowed", "")
		s.becomes(hidden, "unknown", "refuses it to the token")
		s.becomes(hidden, "unknown", hidden)
		s.becomes(hidden, "unknown", "intention")
	})
}

// Wrong, then right, then rotated, then taken away: the file is read for every question.
func TestTokenLife(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Open(t, p)
		s, name, token := one(t, at, at.Address())
		right := secretIn(t, token)
		consulserver.WriteToken(t, token, "00000000-0000-4000-8000-000000000bad")
		s.run()
		s.becomes(name, "unknown", "does not take the token")
		consulserver.WriteToken(t, token, right)
		s.becomes(name, "allowed", "")

		_, made := at.Token(t, plan.Rules([]string{name}), 0)
		consulserver.WriteToken(t, token, made.SecretID)
		old, _, err := at.Client(t, right).ACL().TokenReadSelf(nil)
		if err != nil {
			t.Fatal(err)
		}
		deleted(t, at, old.AccessorID)
		for end := time.Now().Add(3 * shortly); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if d := s.Decide(agent, name, nil); !d.Allowed || d.Stale {
				t.Fatalf("after the rotation: %+v", d)
			}
		}
		deleted(t, at, made.AccessorID)
		s.becomes(name, "stale", "does not take the token")
		s.becomes(name, "unknown", "does not take the token")
		if d := s.Decide(agent, name, nil); strings.Contains(d.Reason, made.SecretID) {
			t.Error("the token is in the reason")
		}
		_, made = at.Token(t, plan.Rules([]string{name}), 0)
		consulserver.WriteToken(t, token, made.SecretID)
		s.becomes(name, "allowed", "")
	})
}

func deleted(t *testing.T, at *consulserver.Server, accessor string) {
	t.Helper()
	if _, err := at.Root(t).ACL().TokenDelete(accessor, nil); err != nil {
		t.Fatal(err)
	}
}

// A token that ends by itself is one that is taken away. Consul gives none less than a
// minute.
func TestExpiredToken(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Open(t, p)
		t.Parallel()
		name := at.Prefix() + "weather"
		write(t, at, pair(agent, name, true))
		token, _ := at.Token(t, plan.Rules([]string{name}), time.Minute)
		s := open(t, at, way{address: at.Address(), token: token, names: []string{name}, fresh: shortly, grace: 2 * shortly})
		s.run()
		s.becomes(name, "allowed", "")
		time.Sleep(30 * time.Second) // of its minute
		s.becomes(name, "unknown", "does not take the token")
	})
}

// Away at the start, in the middle, slow, and back: nothing that was not said is allowed,
// and what is said counts again without a restart.
func TestAway(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Open(t, p)
		way := at.Proxy(t)
		way.Refuse()
		s, name, _ := one(t, at, way.Address())
		s.run()
		s.becomes(name, "unknown", "does not answer")
		way.Pass()
		s.becomes(name, "allowed", "")
		way.Slow(50 * time.Millisecond)
		time.Sleep(shortly)
		s.becomes(name, "allowed", "")
		for what, fault := range map[string]func(){"refuses": way.Refuse, "hangs": way.Hold} {
			t.Log(what)
			fault()
			s.becomes(name, "stale", "")
			s.becomes(name, "unknown", "does not answer")
			write(t, at, pair(agent, name, false)) // nobody heard
			way.Pass()
			s.becomes(name, "denied", "denies")
			write(t, at, pair(agent, name, true))
			s.becomes(name, "allowed", "")
		}
		way.Slow(3 * shortly)
		s.becomes(name, "unknown", "")
		way.Pass()
		s.becomes(name, "allowed", "")
	})
}

// A server without a leader answers, and knows nothing.
func TestLeaderless(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Open(t, p)
		way := at.Proxy(t)
		s, name, _ := one(t, at, way.Address())
		s.run()
		s.becomes(name, "allowed", "")
		way.To(at.Leaderless(t).HostPort())
		s.becomes(name, "stale", "")
		s.becomes(name, "unknown", "no leader")
		way.To(at.HostPort())
		s.becomes(name, "allowed", "")
	})
}

// Killed and started again, put back to a snapshot, and started anew from nothing: what
// counts is what Consul says now, also where its index is lower than before.
func TestAnotherHistory(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		t.Run("kill", func(t *testing.T) {
			at := consulserver.Start(t, p)
			s, name, _ := one(t, at, at.Address())
			s.run()
			s.becomes(name, "allowed", "")
			restore := at.Snapshot(t)
			write(t, at, pair(agent, name, false))
			s.becomes(name, "denied", "")
			restore()
			s.becomes(name, "allowed", "")
			at.Kill(t)
			s.becomes(name, "unknown", "does not answer")
			at.Start(t)
			s.becomes(name, "allowed", "")
		})
		t.Run("nothing", func(t *testing.T) {
			at := consulserver.StartDev(t, p)
			s, name, token := one(t, at, at.Address())
			for i := range 200 { // its index is far ahead
				write(t, at, pair("other", name, i%2 == 0))
			}
			write(t, at, pair(agent, name, true))
			s.run()
			s.becomes(name, "allowed", "")
			at.Stop(t)
			at.Start(t)
			_, made := at.Token(t, plan.Rules([]string{name}), 0)
			consulserver.WriteToken(t, token, made.SecretID)
			s.becomes(name, "denied", "no intention in Consul allows it")
			write(t, at, pair(agent, name, true))
			s.becomes(name, "allowed", "")
		})
	})
}

// A JWT, or what a newer Consul may say, is not known to this one; what it does know to
// be elsewhere is refused there. What is left is a peer.
func TestPeerIsNotUnderstood(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Open(t, p)
		s, name, _ := one(t, at, at.Address())
		s.run()
		s.becomes(name, "allowed", "")
		e := pair(agent, name, true)
		e.Sources = append(e.Sources, &api.SourceIntention{Name: "web", Peer: "east", Action: api.IntentionActionDeny, Type: api.IntentionSourceConsul})
		write(t, at, e)
		s.becomes(name, "denied", `peer "east"`)
		write(t, at, pair(agent, name, true))
		s.becomes(name, "allowed", "")
	})
}

// Every example that is an entry of ours is one that files mean, too.
func TestExamplesAreFiles(t *testing.T) {
	names, err := filepath.Glob("../examples/20-*.hcl")
	if err != nil || len(names) == 0 {
		t.Fatalf("%v, %v", names, err)
	}
	for _, name := range append(names, "../examples/10-default-deny.hcl") {
		if _, err := parseFile(name); err != nil {
			t.Error(err)
		}
	}
}

package intentions

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const agent, weather = "agent-a", "weather"

// expect a verdict: allowed, denied, stale with the last verdict, or unknown.
func expect(t *testing.T, s *Server, what, want string) {
	t.Helper()
	d := s.Decide(agent, weather, nil)
	got := map[bool]string{true: "allowed", false: "denied"}[d.Allowed]
	if d.Stale {
		got = "stale " + got
	}
	if d.Unknown {
		got = "unknown"
	}
	if got != want || d.Reason == "" {
		t.Errorf("%s: %s because %s, want %s", what, got, d.Reason, want)
	}
}

// A change is seen when it happens, announced after it counts, and costs one question.
func TestChangeIsSeenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(l4(agent, weather, "allow"))
		s, news := watching(t, c, weather)
		<-news
		expect(t, s, "at first", "allowed")
		time.Sleep(time.Second)
		began := time.Now()
		c.set(11, l4(agent, weather, "deny"))
		if at := <-news; at.Sub(began) > apart {
			t.Errorf("seen after %s", at.Sub(began))
		}
		expect(t, s, "after the change", "denied")
		c.set(12)
		<-news
		expect(t, s, "after the last one was deleted", "denied")
		c.questions()
		time.Sleep(time.Minute)
		if n := len(c.questions()); n > 40 {
			t.Errorf("%d questions in a quiet minute", n)
		}
	})
}

// A Consul that is away opens nothing: first nothing new begins, then nothing that is open
// goes on. Ten minutes later it is as before. INV-13.
func TestAwayFailsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(l4(agent, weather, "allow"))
		s, news := watching(t, c, weather)
		<-news
		c.change(func() { c.broken = away })
		time.Sleep(2 * time.Second)
		expect(t, s, "away for 2 s", "allowed")
		time.Sleep(5 * time.Second)
		expect(t, s, "away for 7 s", "stale allowed")
		time.Sleep(10 * time.Second)
		expect(t, s, "away for 17 s", "unknown")
		if d := s.Decide(agent, weather, nil); !strings.Contains(d.Reason, away.Error()) {
			t.Errorf("the reason does not say what failed: %s", d.Reason)
		}
		c.questions()
		time.Sleep(10 * time.Minute)
		if n := len(c.questions()); n > 800 || n < 300 {
			t.Errorf("%d questions in ten minutes to a server that is away", n)
		}
		c.change(func() { c.broken = nil })
		time.Sleep(2 * time.Second)
		expect(t, s, "back", "allowed")
	})
}

// What nobody has answered yet is neither allowed nor denied, also of a destination that
// nobody named before.
func TestBeforeTheFirstAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(l4(agent, weather, "allow"))
		c.broken = away
		s, news := watching(t, c)
		expect(t, s, "before the first question", "unknown")
		time.Sleep(time.Minute)
		expect(t, s, "a minute later", "unknown")
		c.change(func() { c.broken = nil })
		<-news
		expect(t, s, "after the first answer", "allowed")
	})
}

// An index that goes backwards is another history, and so is zero: the next question is
// one without an index. A server that answers at once for ever is not asked for ever.
func TestIndexRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(l4(agent, weather, "allow"))
		s, news := watching(t, c, weather)
		<-news
		time.Sleep(3 * time.Second)
		c.questions()
		c.set(3, l4(agent, weather, "deny")) // a snapshot of before
		<-news
		expect(t, s, "after an index went backwards", "denied")
		time.Sleep(3 * time.Second)
		if q := c.questions(); len(q) < 2 || q[0].index != 0 || q[1].index != 3 {
			t.Errorf("after an index of before: %+v", q)
		}
		for name, index := range map[string]uint64{"no index": 0, "an index that stays": 5} {
			c.change(func() { c.index, c.hold = index, false })
			time.Sleep(10 * time.Second)
			c.questions()
			time.Sleep(10 * time.Second)
			if n := len(c.questions()); n > 45 || n < 4 {
				t.Errorf("%s: %d questions in 10 s", name, n)
			}
			expect(t, s, name, "denied")
		}
	})
}

// Other destinations' changes wake every question: they are answered, not raced.
func TestBusyCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(l4(agent, weather, "allow"))
		s, news := watching(t, c, weather)
		<-news
		c.questions()
		for i := range uint64(1000) {
			c.set(20+i, l4(agent, weather, "allow"), l4(agent, "other", "deny"))
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(c.questions()); n > 60 {
			t.Errorf("%d questions in 10 s of changes elsewhere", n)
		}
		began := time.Now()
		c.set(5000, l4(agent, weather, "deny"))
		if at := <-news; at.Sub(began) > 300*time.Millisecond {
			t.Errorf("a deny was seen after %s", at.Sub(began))
		}
		expect(t, s, "after the deny", "denied")
	})
}

// The number of watches is bounded, whatever is asked for.
func TestBounded(t *testing.T) {
	names := make([]string, MaxDestinations+1)
	for i := range names {
		names[i] = "d" + strings.Repeat("x", i%100+1) + string(rune('a'+i/100))
	}
	if _, err := New(Params{Source: newCluster(), Destinations: names}); err == nil || !strings.Contains(err.Error(), "150") {
		t.Errorf("too many destinations: %v", err)
	}
	s, err := New(Params{Source: newCluster(), Destinations: names[:MaxDestinations]})
	if err != nil {
		t.Fatal(err)
	}
	if d := s.Decide(agent, "one-more", nil); !d.Unknown || d.Allowed {
		t.Errorf("one more: %+v", d)
	}
	for _, bad := range []string{"", "*", "a b", "we*"} {
		if d := s.Decide(agent, bad, nil); d.Allowed || d.Unknown {
			t.Errorf("%q: %+v", bad, d)
		}
	}
}

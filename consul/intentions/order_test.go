package intentions

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"bivouac/consul/client"
)

// answered is what Consul says at an index of its history.
func answered(t *testing.T, index uint64, action string) client.Answer {
	t.Helper()
	b, err := json.Marshal(map[string]any{weather: []any{l4(agent, weather, action)}})
	if err != nil {
		t.Fatal(err)
	}
	return client.Answer{Body: b, Index: index}
}

// held answers one question when it is let go.
type held struct {
	asked, let chan struct{}
	answer     client.Answer
}

func (h held) Match(context.Context, string, uint64, time.Duration) (client.Answer, error) {
	close(h.asked)
	<-h.let
	return h.answer, nil
}

// What was asked for earlier and speaks of before opens nothing that was closed meanwhile;
// a question that was held until something changed speaks of now, however old it is.
func TestAnswersOutOfOrder(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile, late client.Answer
		want            string
	}{
		"of before": {answered(t, 11, "deny"), answered(t, 10, "allow"), "denied"},
		"of now":    {answered(t, 11, "allow"), answered(t, 12, "deny"), "denied"},
	} {
		src := held{make(chan struct{}), make(chan struct{}), c.late}
		clock := time.Second
		s, err := New(Params{Source: src, Destinations: []string{weather}, Elapsed: func() time.Duration { return clock }})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Refresh(t.Context()) }()
		<-src.asked
		clock = 2 * time.Second
		if _, err := s.learn(s.watched(weather), c.meanwhile, clock); err != nil {
			t.Fatal(err)
		}
		expect(t, s, name+", meanwhile", map[bool]string{true: "denied", false: "allowed"}[name == "of before"])
		close(src.let)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		expect(t, s, name, c.want)
	}
}

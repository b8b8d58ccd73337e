package server_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
)

// watchUntil collects what a stream sends until enough says so.
func (w *world) watchUntil(token, session string, after int64, enough func(*apiv1.WatchEventsResponse) bool) (events []*apiv1.Event, text string, err error) {
	done := errors.New("enough")
	err = w.as(token).Watch(w.t.Context(), session, after, func(m *apiv1.WatchEventsResponse) error {
		if e := m.GetEvent(); e != nil {
			events = append(events, e)
		}
		text += m.GetTextDelta()
		if enough(m) {
			return done
		}
		return nil
	})
	if errors.Is(err, done) {
		err = nil
	}
	return events, text, err
}

func ended(turn string) func(*apiv1.WatchEventsResponse) bool {
	return func(m *apiv1.WatchEventsResponse) bool {
		return m.GetEvent().GetType() == "turn.ended" && m.GetEvent().GetTurnId() == turn
	}
}

// Durable first, then live; from any sequence exactly the rest; the chain holds
// over the stored bytes. INV-8.
func TestWatchEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		obedient(w)
		alice := w.as(w.token)
		w.apply(alice, clerk)
		session := w.open(alice, "clerk")
		var first *apiv1.Turn
		all, text, err := w.watchUntil(w.token, session, 0, func(m *apiv1.WatchEventsResponse) bool {
			if first == nil { // text is heard before the first message comes
				first = w.submit(alice, session, "m1", "good morning")
			}
			return ended(first.GetId())(m)
		})
		if err != nil {
			t.Fatal(err)
		}
		if text != "you said: good morning" {
			t.Errorf("live text %q", text)
		}
		prev := make([]byte, 0)
		for i, e := range all {
			if e.GetSeq() != int64(i+1) {
				t.Fatalf("event %d has sequence %d", i+1, e.GetSeq())
			}
			if i > 0 && !slices.Equal(e.GetPrevHash(), prev) {
				t.Errorf("event %d does not follow the one before", e.GetSeq())
			}
			sum := sha256.Sum256(append(slices.Clone(e.GetPrevHash()), e.GetStored()...))
			if !slices.Equal(sum[:], e.GetHash()) {
				t.Errorf("event %d: the hash is not over the stored bytes", e.GetSeq())
			}
			prev = e.GetHash()
		}
		last := all[len(all)-1].GetSeq()
		for after := range last {
			rest, _, err := w.watchUntil(w.token, session, after, ended(first.GetId()))
			if err != nil || len(rest) != int(last-after) || rest[0].GetSeq() != after+1 {
				t.Fatalf("after %d: %d events, %v", after, len(rest), err)
			}
		}
		list, err := alice.Events.ListEvents(t.Context(), &apiv1.ListEventsRequest{TurnId: first.GetId(), AfterSeq: 2, Limit: 3})
		if err != nil || len(list.GetEvents()) != 3 || list.GetEvents()[0].GetSeq() != 3 {
			t.Errorf("list: %v %v", list, err)
		}
	})
}

func TestWatchEndsWithItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		obedient(w)
		alice := w.as(w.token)
		w.apply(alice, clerk)
		session := w.open(alice, "clerk")
		turn := w.submit(alice, session, "m1", "hello")
		w.awaitTurn(alice, turn.GetId(), "COMPLETED")
		watched := make(chan error, 1)
		var types []string
		go func() {
			watched <- alice.Watch(t.Context(), session, 0, func(m *apiv1.WatchEventsResponse) error {
				types = append(types, m.GetEvent().GetType())
				return nil
			})
		}()
		time.Sleep(time.Second)
		select {
		case err := <-watched:
			t.Fatalf("ended while the session is open: %v", err)
		default:
		}
		if _, err := alice.Sessions.CloseSession(t.Context(), &apiv1.CloseSessionRequest{SessionId: session}); err != nil {
			t.Fatal(err)
		}
		if err := <-watched; err != nil {
			t.Errorf("the end of a session is no error: %v", err)
		}
		if !slices.Contains(types, "session.closed") {
			t.Errorf("ended before the last event: %v", types)
		}
	})
}

// A stream survives a restart of the server without a gap or a repeat.
func TestWatchOverARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		obedient(w)
		alice := w.as(w.token)
		w.apply(alice, clerk)
		session := w.open(alice, "clerk")
		first := w.submit(alice, session, "m1", "hello")
		w.awaitTurn(alice, first.GetId(), "COMPLETED")
		var seqs []int64
		var second string
		got := make(chan error, 1)
		over := errors.New("over")
		go func() {
			got <- alice.Watch(t.Context(), session, 0, func(m *apiv1.WatchEventsResponse) error {
				if e := m.GetEvent(); e != nil {
					seqs = append(seqs, e.GetSeq())
					if e.GetType() == "turn.ended" && e.GetTurnId() != first.GetId() {
						second = e.GetTurnId()
						return over
					}
				}
				return nil
			})
		}()
		time.Sleep(time.Second)
		if err := w.stop(); err != nil {
			t.Fatal(err)
		}
		w.startServer()
		w.awaitReady()
		turn := w.submit(w.as(w.token), session, "m2", "again")
		if err := <-got; !errors.Is(err, over) || second != turn.GetId() {
			t.Fatalf("%v, %s", err, second)
		}
		for i, s := range seqs {
			if s != int64(i+1) {
				t.Fatalf("sequences %v", seqs)
			}
		}
	})
}

// A suspended user's open stream ends: its end is read from the durable state.
func TestWatchEndsWithItsPrincipal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		obedient(w)
		alice := w.as(w.token)
		w.apply(alice, clerk)
		bob, p := w.add(alice, "", "bob", false)
		session := w.open(bob, "clerk")
		watched := make(chan error, 1)
		go func() {
			watched <- bob.Watch(t.Context(), session, 0, func(*apiv1.WatchEventsResponse) error { return nil })
		}()
		time.Sleep(10 * time.Second)
		if _, err := alice.Principals.DisablePrincipal(t.Context(), &apiv1.DisablePrincipalRequest{PrincipalId: p.GetId()}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := <-watched; protocol.CodeOf(err) != protocol.CodeUnauthenticated {
			t.Errorf("ended with %v", err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("lived on for %s", took)
		}
	})
}

// A stop takes seconds, whatever waits, and what waits is there afterwards.
func TestStopWithAPendingApproval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		obedient(w)
		alice := w.as(w.token)
		w.apply(alice, clerk)
		session := w.open(alice, "clerk")
		turn := w.submit(alice, session, "m1", "order a tent")
		w.awaitTurn(alice, turn.GetId(), "WAITING_APPROVAL")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := alice.Events.WatchEvents(ctx, &apiv1.WatchEventsRequest{SessionId: session})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := w.stop(); err != nil {
			t.Errorf("stopped with %v", err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("the stop took %s", took)
		}
		for stream.Receive() {
		}
		if err := stream.Err(); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("the stream ended with %v", err)
		}
		w.startServer()
		w.awaitReady()
		alice = w.as(w.token)
		list, err := alice.Approvals.ListApprovals(t.Context(), &apiv1.ListApprovalsRequest{})
		if err != nil || len(list.GetApprovals()) != 1 || list.GetApprovals()[0].GetTurnId() != turn.GetId() {
			t.Errorf("after the restart: %v %v", list, err)
		}
	})
}

func TestArtifacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		alice := w.as(w.token)
		content := strings.Repeat("0123456789", 100_000)
		digest, existed, err := alice.PutArtifact(t.Context(), "workspace", strings.NewReader(content))
		if err != nil || existed {
			t.Fatal(digest, existed, err)
		}
		if _, existed, err := alice.PutArtifact(t.Context(), "workspace", strings.NewReader(content)); err != nil || !existed {
			t.Errorf("again: %v %v", existed, err)
		}
		var got strings.Builder
		if err := alice.GetArtifact(t.Context(), digest, &got); err != nil || got.String() != content {
			t.Errorf("%d bytes, %v", got.Len(), err)
		}
		for name, first := range map[string]*apiv1.PutArtifactRequest{
			"another digest": {Digest: "sha256:" + strings.Repeat("0", 64), Size: 3, Kind: "workspace", Chunk: []byte("abc")},
			"another size":   {Digest: digest, Size: 3, Kind: "workspace", Chunk: []byte(content[:100])},
			"too large":      {Digest: digest, Size: 1 << 50, Kind: "workspace"},
			"another kind":   {Digest: digest, Size: 3, Kind: "patch"},
			"no digest":      {Digest: "hello", Size: 3, Kind: "workspace"},
		} {
			stream, err := alice.Artifacts.PutArtifact(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_ = stream.Send(first) // the answer says why
			if _, err := stream.CloseAndReceive(); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

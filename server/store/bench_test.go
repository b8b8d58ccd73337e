package store

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/session"
)

// BenchmarkUpdate is the batched commit rate: one small event a call, many callers.
func BenchmarkUpdate(b *testing.B) {
	s := openAt(b, b.TempDir())
	measure(b, s, 64, func(id protocol.SessionID) error {
		return s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, "") })
	})
}

// BenchmarkUpdateAlone is one caller, so every call is a commit with its fsync.
func BenchmarkUpdateAlone(b *testing.B) {
	s := openAt(b, b.TempDir())
	measure(b, s, 1, func(id protocol.SessionID) error {
		return s.Update(context.Background(), loop, func(tx *Tx) error { return say(tx, id, "") })
	})
}

// BenchmarkAdmission is what one admitted turn writes: the turn and its event.
func BenchmarkAdmission(b *testing.B) {
	s := openAt(b, b.TempDir())
	var n atomic.Int64
	measure(b, s, 64, func(id protocol.SessionID) error {
		return s.Update(context.Background(), loop, func(tx *Tx) error {
			t := session.Turn{ID: newID[protocol.TurnID](tx), Session: id, State: session.Queued, QueuedAt: tx.Now,
				MessageID: fmt.Sprint(n.Add(1)), Prompt: "What is in my notes?"}
			if _, err := tx.InsertTurn(t); err != nil {
				return err
			}
			return say(tx, id, t.Prompt)
		})
	})
}

func measure(b *testing.B, s *Store, callers int, call func(protocol.SessionID) error) {
	sessions := make([]protocol.SessionID, callers)
	for i := range sessions {
		id, err := conversation(s, fmt.Sprint("tenant ", i))
		if err != nil {
			b.Fatal(err)
		}
		sessions[i] = id
	}
	w := s.sqlite().writer
	before := w.commits.Load()
	var next atomic.Int64
	done := make(chan error, callers)
	b.ResetTimer()
	for _, id := range sessions {
		go func() {
			var err error
			for err == nil && next.Add(1) <= int64(b.N) {
				err = call(id)
			}
			done <- err
		}()
	}
	for range sessions {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "updates/s")
	b.ReportMetric(float64(w.commits.Load()-before)/b.Elapsed().Seconds(), "commits/s")
}

package storetest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/session"
	"bivouac/server/store"
)

// events: gapless, chained, and every field and byte is covered. INV-8.
func events(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	full := session.Event{Type: session.ToolFinished, Turn: x.Active, Action: x.Device, Attempt: x.Running, Approval: x.Approved,
		Data: map[string]string{"b": "2", "a": "<\"\x01é\u2028>", "": "empty"}, Payload: "a result\x00"}
	var stored []session.Stored
	update(t, s, loop, func(tx *store.Tx) (err error) {
		stored, err = tx.AppendEvents(x.Session, full, session.Event{Type: session.TurnMoved, Turn: x.Active})
		return err
	})
	if len(stored) != 2 || stored[0].Seq != 3 || stored[1].Seq != 4 {
		t.Fatalf("sequences: %+v", stored)
	}
	undone(t, s, loop, func(tx *store.Tx) { // a rolled-back event leaves no gap
		if _, err := tx.AppendEvents(x.Session, full); err != nil {
			t.Error(err)
		}
	})
	update(t, s, loop, func(tx *store.Tx) error {
		more, err := tx.AppendEvents(x.Session, full)
		if more[0].Seq != 5 {
			t.Errorf("sequence %d after a rollback, want 5", more[0].Seq)
		}
		return err
	})
	var all []session.Stored
	view(t, s, x.user(), func(tx *store.Tx) (err error) {
		if all, err = tx.Events(x.Session, 0, 0); err != nil {
			return err
		}
		return tx.VerifyEvents(x.Session)
	})
	if err := store.VerifyChain(nil, all); err != nil {
		t.Fatal(err)
	}
	if err := store.VerifyChain(all[1].Hash, all[2:]); err != nil {
		t.Errorf("from the middle: %v", err)
	}
	for i, e := range all { // the hash, made here again
		var prev []byte
		if i > 0 {
			prev = all[i-1].Hash
		}
		if sum := sha256.Sum256(slices.Concat(prev, e.Bytes)); !bytes.Equal(sum[:], e.Hash) || !bytes.Equal(prev, e.PrevHash) {
			t.Errorf("event %d: the hash is not SHA-256 of the one before and the bytes", e.Seq)
		}
	}
	got, want := all[2], stored[0]
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("read\n%+v, wrote\n%+v", got, want)
	}
	if got.Payload != "a result\uFFFD" || got.Data["a"] != full.Data["a"] || got.Approval != x.Approved || !bytes.Contains(got.Bytes, []byte("payload_digest")) {
		t.Errorf("%+v\n%s", got, got.Bytes)
	}
	if bytes.Contains(got.Bytes, []byte("a result")) {
		t.Error("the chain holds a payload")
	}
	tampered(t, all)
	pagesOfEvents(t, s, x, len(all))
}

// tampered: every change breaks the proof.
func tampered(t *testing.T, all []session.Stored) {
	for name, change := range map[string]func(e []session.Stored) []session.Stored{
		"a byte": func(e []session.Stored) []session.Stored {
			e[2].Bytes = bytes.Replace(e[2].Bytes, []byte("2"), []byte("3"), 1)
			return e
		},
		"a hash":            func(e []session.Stored) []session.Stored { e[2].Hash = bytes.Repeat([]byte{1}, 32); return e },
		"the previous hash": func(e []session.Stored) []session.Stored { e[2].PrevHash = e[0].Hash; return e },
		"the type":          func(e []session.Stored) []session.Stored { e[2].Type = session.ToolUnknown; return e },
		"the instant":       func(e []session.Stored) []session.Stored { e[2].At = e[2].At.Add(1000); return e },
		"an id":             func(e []session.Stored) []session.Stored { e[2].Action = id[protocol.ActionID](); return e },
		"the session":       func(e []session.Stored) []session.Stored { e[2].Session = id[protocol.SessionID](); return e },
		"the data":          func(e []session.Stored) []session.Stored { e[2].Data = map[string]string{"b": "3"}; return e },
		"the payload gone":  func(e []session.Stored) []session.Stored { e[2].Payload = ""; return e },
		"one left out":      func(e []session.Stored) []session.Stored { return slices.Delete(e, 2, 3) },
		"the first gone":    func(e []session.Stored) []session.Stored { return e[1:] },
		"two exchanged":     func(e []session.Stored) []session.Stored { e[1], e[2] = e[2], e[1]; return e },
	} {
		if err := store.VerifyChain(nil, change(slices.Clone(all))); protocol.CodeOf(err) != protocol.CodeDataLoss {
			t.Errorf("%s changed: %v", name, err)
		}
	}
}

func pagesOfEvents(t *testing.T, s *store.Store, x *side, total int) {
	view(t, s, x.user(), func(tx *store.Tx) error {
		seen := 0
		for after := int64(0); ; {
			page, err := tx.Events(x.Session, after, 2)
			if err != nil {
				return err
			}
			if len(page) == 0 {
				break
			}
			seen, after = seen+len(page), page[len(page)-1].Seq
		}
		if seen != total {
			t.Errorf("%d events in pages, want %d", seen, total)
		}
		ofTurn, err := tx.EventsOfTurn(x.Active, 0, 0)
		for _, e := range ofTurn {
			if e.Turn != x.Active {
				t.Errorf("event of turn %s", e.Turn)
			}
		}
		if len(ofTurn) != 3 {
			t.Errorf("%d events of the turn, want 3", len(ofTurn))
		}
		if err != nil {
			return err
		}
		for before, want := int64(0), len(ofTurn)-1; want >= 0; want-- {
			page, err := tx.NewestEventsOfTurn(x.Active, before, 1)
			if err != nil || len(page) != 1 || page[0].Seq != ofTurn[want].Seq {
				t.Errorf("newest first, before %d: %v, %v", before, page, err)
				return err
			}
			before = page[0].Seq
		}
		none, err := tx.NewestEventsOfTurn(x.Active, ofTurn[0].Seq, 1)
		if len(none) != 0 {
			t.Errorf("before the first: %v", none)
		}
		return err
	})
}

// erasure takes the words and keeps the chain. INV-8.
func erasure(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	update(t, s, loop, func(tx *store.Tx) error {
		_, err := tx.AppendEvents(x.Session, session.Event{Type: session.ToolFinished, Turn: x.Active, Payload: "secret of red"})
		return err
	})
	erase := func() error {
		return s.Update(t.Context(), x.user(), func(tx *store.Tx) error { return tx.ErasePayloads(x.Session) })
	}
	wantCode(t, "while turns have not ended", erase(), protocol.CodeFailedPrecondition)
	if text := everyWord(t, s, x); strings.Count(text, "secret of red") < 6 {
		t.Fatalf("there is nothing to erase: %s", text)
	}
	file := func(digest string) error {
		return s.View(t.Context(), x.user(), func(tx *store.Tx) error { _, err := tx.Artifact(digest); return err })
	}
	if err := file(x.Artifact); err != nil {
		t.Fatal(err)
	}
	update(t, s, loop, func(tx *store.Tx) error {
		for _, id := range []protocol.TurnID{x.Active, x.Next} {
			turn, err := tx.Turn(id)
			if err != nil {
				return err
			}
			if _, err := walk(tx, turn, session.Cancelled); err != nil {
				return err
			}
		}
		return nil
	})
	for range 2 { // a second time changes nothing
		if err := erase(); err != nil {
			t.Fatal(err)
		}
	}
	if text := everyWord(t, s, x); strings.Contains(text, "secret") {
		t.Errorf("after erasure: %s", text)
	}
	wantCode(t, "its files", file(x.Artifact), protocol.CodeNotFound)
	view(t, s, x.user(), func(tx *store.Tx) error {
		all, err := tx.Events(x.Session, 0, 0)
		if err != nil {
			return err
		}
		tombstones := 0
		for _, e := range all {
			if e.Payload == store.Tombstone {
				tombstones++
			}
		}
		if tombstones != 2 || len(all) != 3 {
			t.Errorf("%d tombstones in %d events", tombstones, len(all))
		}
		if err := store.VerifyChain(nil, all); err != nil {
			t.Error(err)
		}
		return tx.VerifyEvents(x.Session)
	})
	update(t, s, loop, func(tx *store.Tx) error { // and it goes on
		_, err := tx.AppendEvents(x.Session, session.Event{Type: session.SessionClosed, Payload: "later"})
		if err != nil {
			return err
		}
		return tx.VerifyEvents(x.Session)
	})
}

// everyWord is all text of a side's session that the store answers.
func everyWord(t *testing.T, s *store.Store, x *side) string {
	var b strings.Builder
	view(t, s, loop, func(tx *store.Tx) error {
		events, err := tx.Events(x.Session, 0, 0)
		if err != nil {
			return err
		}
		for _, e := range events {
			fmt.Fprintf(&b, "%s\n%s\n", e.Payload, e.Bytes)
		}
		turns, _, err := tx.Turns(x.Session, 0, "")
		if err != nil {
			return err
		}
		for _, turn := range turns {
			actions, err := tx.ActionsOfTurn(turn.ID)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "%+v\n%+v\n%s\n", turn, actions, turn.Loop)
		}
		projection, err := tx.Projection(x.Session)
		if err != nil {
			return err
		}
		records, err := tx.Records(x.Running)
		if err != nil {
			return err
		}
		for _, r := range records {
			projection = append(projection, r.Body)
		}
		fmt.Fprintf(&b, "%s", projection)
		return nil
	})
	return b.String()
}

func projection(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	save := func(turn protocol.TurnID, n int64, text string) error {
		return attempt(s, func(tx *store.Tx) error { return tx.SaveProjection(x.Session, turn, n, []byte(text)) })
	}
	wantCode(t, "another place", save(x.Done, 2, "x"), protocol.CodeInvalidArgument)
	for turn, n := range map[protocol.TurnID]int64{x.Next: 3, x.Active: 2, x.Done: 1} {
		if err := save(turn, n, fmt.Sprint("messages ", n)); err != nil {
			t.Fatal(err)
		}
	}
	view(t, s, x.user(), func(tx *store.Tx) error {
		all, err := tx.Projection(x.Session)
		if got := string(bytes.Join(all, []byte("|"))); got != "messages 1|messages 2|messages 3" {
			t.Errorf("read %q", got)
		}
		return err
	})
}

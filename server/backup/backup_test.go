package backup_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/backup"
	"bivouac/server/broker/protocol/brokerv1"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
	"bivouac/server/store"
	"bivouac/server/store/blob"
	"bivouac/server/store/storetest"
)

var (
	note = et.Call{ID: "n", Alias: "note", Arguments: `{"text":"x"}`}
	send = et.Call{ID: "s", Alias: "send", Arguments: `{"text":"x"}`}
)

func reply(text string) et.ToolFunc {
	return func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
		return &brokerv1.InvokeResponse{HttpStatus: 200, ContentType: "text/plain", Body: []byte(text)}, nil
	}
}

func inWorld(t *testing.T, fn func(t *testing.T, w *et.World, blobs *blob.Dir)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := et.New(t)
		w.Join("laptop", "files.read").Files["home/todo.txt"] = "buy milk"
		w.Broker.Serve("http:note", reply("noted"))
		w.Broker.Serve("http:send", reply("sent"))
		w.Settle()
		fn(t, w, openBlobs(t, t.TempDir()))
	})
}

func openBlobs(t *testing.T, dir string) *blob.Dir {
	t.Helper()
	d, err := blob.Open(blob.Config{Path: filepath.Join(dir, "blobs")})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// copyOf writes a backup of the world's store while the store is open.
func copyOf(t *testing.T, at store.Config, blobs *blob.Dir) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "copy.tar")
	if _, err := backup.Write(context.Background(), backup.Config{Store: at, Blobs: blobs, Product: "test", Keyring: "/etc/keyring.age", File: file}); err != nil {
		t.Fatal(err)
	}
	return file
}

// restore brings the world back from a file, as a new machine does: its broker and
// its runners are as they are.
func restore(t *testing.T, w *et.World, file string) {
	t.Helper()
	c, err := backup.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	st, err := c.Fill(t.Context(), store.Config{Path: filepath.Join(dir, "state.db")}, openBlobs(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	w.Store = st
	w.Restart()
	if _, err := w.Engine.Rewind(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range w.Runners {
		r.Connect()
	}
}

// An old backup repeats nothing. Whatever was open when it was made may have gone
// on since: at every moment of a turn a backup is made, the turn goes on to its
// end, and the backup is restored. No effect happens a second time, capabilities
// and fences of the earlier life are refused, and new work runs. INV-3, INV-5,
// INV-16.
func TestOldBackupRepeatsNothing(t *testing.T) {
	steps := 0
	for after := 1; after <= max(steps, 1); after++ {
		inWorld(t, func(t *testing.T, w *et.World, blobs *blob.Dir) {
			w.Broker.Say(et.Script(et.Calls(note), et.Text("done"), et.Text("second"), et.Text("new work")))
			s := w.Session("assistant")
			turn, waiting := w.Submit(s, "first"), w.Submit(s, "second")
			n, file, last := 0, "", ""
			w.Until("the moment or the end", func() bool {
				now := w.Turn(turn.ID)
				if mark := fmt.Sprint(now.State, len(w.Events(s.ID)), states(w, turn.ID), len(w.Broker.Effects())); mark != last {
					last = mark
					if n++; n == after {
						file = copyOf(t, store.Config{Path: w.Path}, blobs)
					}
				}
				return now.State.Terminal()
			})
			steps = max(steps, n)
			if file == "" {
				return
			}
			w.Settle()
			before, tokens, fence := len(w.Broker.Effects()), w.Broker.Tokens(), w.Turn(turn.ID).OwnerFence
			old := w.Store.Epoch()
			restore(t, w, file)
			for _, token := range tokens { // they have not run out
				if err := w.Broker.Present(token); err == nil {
					t.Errorf("moment %d: a capability of the earlier life is admitted", after)
				}
			}
			w.Sleep(2 * time.Minute)
			if w.Store.Epoch() <= old {
				t.Errorf("moment %d: epoch %d after %d", after, w.Store.Epoch(), old)
			}
			if got := len(w.Broker.Effects()); got != before {
				t.Errorf("moment %d: %d effects, %d before the restore", after, got, before)
			}
			for _, id := range []protocol.TurnID{turn.ID, waiting.ID} {
				if got, err := turnOf(w, id); err == nil && !got.State.Terminal() {
					t.Errorf("moment %d: turn is still %s", after, got.State)
				}
			}
			for _, a := range w.Actions(turn.ID) {
				happened := slices.ContainsFunc(w.Broker.Effects(), func(e et.Effect) bool { return e.Action == a.ID })
				if !a.State.Terminal() || happened && a.State != session.Succeeded && a.State != session.ActionUnknown {
					t.Errorf("moment %d: action is %s (%s), happened: %v", after, a.State, a.Evidence, happened)
				}
			}
			fresh := w.Submit(w.Session("assistant"), "new")
			w.Settle()
			got := w.Turn(fresh.ID)
			if got.State != session.Completed || got.OwnerFence <= fence {
				t.Errorf("moment %d: new work is %s{%s} %s under fence %s, the earlier life had %s", after, got.State, got.Reason, got.Message, got.OwnerFence, fence)
			}
		})
	}
	if steps < 6 {
		t.Errorf("only %d moments: the test proves little", steps)
	}
}

func states(w *et.World, id protocol.TurnID) (out []session.ActionState) {
	for _, a := range w.Actions(id) {
		out = append(out, a.State)
	}
	return out
}

func turnOf(w *et.World, id protocol.TurnID) (t session.Turn, err error) {
	err = w.Store.View(context.Background(), store.AsLoop("test"), func(tx *store.Tx) (err error) {
		t, err = tx.Turn(id)
		return err
	})
	return t, err
}

// What waited for a person's word is asked of nobody any more: the word may have
// been given, and acted on, since. INV-6.
func TestRestoredApprovalIsOver(t *testing.T) {
	inWorld(t, func(t *testing.T, w *et.World, blobs *blob.Dir) {
		w.Broker.Say(et.Script(et.Calls(send), et.Text("done")))
		turn := w.Submit(w.Session("assistant"), "first")
		w.Settle()
		if got := w.Turn(turn.ID); got.State != session.WaitingApproval {
			t.Fatalf("turn is %s", got.State)
		}
		restore(t, w, copyOf(t, store.Config{Path: w.Path}, blobs))
		w.Settle()
		for _, a := range w.Approvals(turn.ID) {
			if !a.State.Terminal() {
				t.Errorf("the approval is %s", a.State)
			}
		}
		if got := w.Turn(turn.ID); got.State != session.Failed || got.Reason != "restored" {
			t.Errorf("turn is %s{%s}", got.State, got.Reason)
		}
	})
}

// The same file restored twice gives two lives with nothing in common.
func TestEachRestoreIsAnotherLife(t *testing.T) {
	inWorld(t, func(t *testing.T, w *et.World, blobs *blob.Dir) {
		w.Broker.Say(et.Script(et.Text("one"), et.Text("two")))
		file := copyOf(t, store.Config{Path: w.Path}, blobs)
		restore(t, w, file)
		w.Sleep(time.Minute)
		first, turn := w.Store.Epoch(), w.Submit(w.Session("assistant"), "in the first life")
		w.Settle()
		fence, tokens := w.Turn(turn.ID).OwnerFence, w.Broker.Tokens()
		restore(t, w, file)
		if w.Store.Epoch() <= first {
			t.Errorf("epoch %d after %d", w.Store.Epoch(), first)
		}
		if err := w.Broker.Present(tokens[len(tokens)-1]); err == nil {
			t.Error("a capability of the first life is admitted in the second")
		}
		again := w.Submit(w.Session("assistant"), "in the second life")
		w.Settle()
		if got := w.Turn(again.ID); got.State != session.Completed || got.OwnerFence <= fence {
			t.Errorf("turn is %s under %s, before: %s", got.State, got.OwnerFence, fence)
		}
	})
}

// Two restores of one file have two epochs, also within one second and at the same
// time; the one who waits for its turn may give up. INV-16.
func TestNoTwoRestoresHaveOneEpoch(t *testing.T) {
	inWorld(t, func(t *testing.T, w *et.World, blobs *blob.Dir) {
		file := copyOf(t, store.Config{Path: w.Path}, blobs)
		c, err := backup.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		fill := func(ctx context.Context) (uint32, error) {
			st, err := c.Fill(ctx, store.Config{Path: filepath.Join(t.TempDir(), "state.db")}, blobs)
			if err != nil {
				return 0, err
			}
			return st.Epoch(), st.Close()
		}
		type answer struct {
			epoch uint32
			err   error
		}
		const at = 4
		answers := make(chan answer, at)
		for range at {
			go func() {
				epoch, err := fill(context.Background())
				answers <- answer{epoch, err}
			}()
		}
		seen := map[uint32]bool{}
		for range at {
			a := <-answers
			if a.err != nil || seen[a.epoch] || a.epoch <= c.Manifest.Epoch {
				t.Errorf("epoch %d after %v: %v", a.epoch, seen, a.err)
			}
			seen[a.epoch] = true
		}
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := fill(gone); !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
		// A clock that is behind the copy's life could give an epoch twice.
		c.Manifest.Epoch += 3600
		if _, err := fill(context.Background()); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "set the clock") {
			t.Errorf("a clock that is behind: %v", err)
		}
	})
}

// After a restore that lost the ledger's end the broker signs nothing until a person
// has accepted the epoch, which is said where people look; then the ledger goes on.
// INV-8.
func TestRestoredLedgerWaitsForAPerson(t *testing.T) {
	inWorld(t, func(t *testing.T, w *et.World, blobs *blob.Dir) {
		w.Broker.Say(et.Script(et.Text("one"), et.Text("two"), et.Text("three"), et.Text("four")))
		head := func() (h store.LedgerHead) {
			if err := w.Store.View(t.Context(), w.Me(), func(tx *store.Tx) (err error) { h, err = tx.Ledger(w.Tenant.ID); return err }); err != nil {
				t.Fatal(err)
			}
			return h
		}
		talk := func(text string) store.LedgerHead {
			w.Submit(w.Session("assistant"), text)
			w.Settle()
			w.Sleep(30 * time.Second)
			return head()
		}
		before := talk("first")
		file := copyOf(t, store.Config{Path: w.Path}, blobs)
		if after := talk("second"); before.SignedSize == 0 || after.SignedSize <= before.SignedSize || after.Refused != "" {
			t.Fatalf("before the copy %+v, after it %+v", before, after)
		}
		restore(t, w, file)
		got, epoch := talk("in the restored life"), w.Store.Epoch()
		if got.SignedSize != before.SignedSize || got.Size <= got.SignedSize || !strings.Contains(got.Refused, fmt.Sprintf("bivouac-broker ledger accept --epoch %d", epoch)) {
			t.Errorf("nobody accepted it: %+v", got)
		}
		w.Broker.Accepted = map[uint32]bool{epoch: true}
		if got := talk("once it is accepted"); got.SignedSize != got.Size || got.Refused != "" {
			t.Errorf("accepted: %+v", got)
		}
	})
}

// A file that is not what was written is refused, with what is wrong, before
// anything is made of it.
func TestDamagedBackupIsRefused(t *testing.T) {
	var file string
	inWorld(t, func(t *testing.T, w *et.World, blobs *blob.Dir) {
		w.Broker.Say(et.Script(et.Text("hello")))
		w.Submit(w.Session("assistant"), "something to look for")
		w.Settle()
		file = copyOf(t, store.Config{Path: w.Path}, blobs)
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		place := strings.Index(string(whole), "something to look for")
		for name, c := range map[string]struct {
			bytes []byte
			want  string
		}{
			"altered":      {slices.Concat(whole[:place], []byte("S"), whole[place+1:]), "tables/turns/000001.jsonl was altered"},
			"cut in half":  {whole[:place+4], "unexpected EOF"}, // in the middle of a table
			"without end":  {whole[:strings.LastIndex(string(whole), "end.json")/512*512], "its end is missing"},
			"empty":        {nil, "after 0 entries"},
			"another file": {[]byte(strings.Repeat("no tar at all ", 100)), "after 0 entries"},
		} {
			bad := filepath.Join(t.TempDir(), "bad.tar")
			if err := os.WriteFile(bad, c.bytes, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := backup.Open(bad); protocol.CodeOf(err) != protocol.CodeDataLoss || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := backup.Open(file); err != nil {
			t.Errorf("the whole one: %v", err)
		}
		if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v: others can read it", st.Mode(), err)
		}
		_, err = backup.Write(t.Context(), backup.Config{Store: store.Config{Path: w.Path}, Blobs: blobs, File: file})
		if protocol.CodeOf(err) != protocol.CodeAlreadyExists {
			t.Errorf("over another file: %v", err)
		}
		c, err := backup.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := c.Fill(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "x.db")}, blobs); err != nil {
			t.Errorf("into an empty one: %v", err)
		} else {
			st.Close()
		}
		full := filepath.Join(t.TempDir(), "full.db")
		st, err := store.Open(t.Context(), store.Config{Path: full})
		if err != nil {
			t.Fatal(err)
		}
		st.Close()
		if _, err := c.Fill(t.Context(), store.Config{Path: full}, blobs); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
			t.Errorf("over another store: %v", err)
		}
	})
}

// A copy of one engine fills the other, and nothing is lost on the way there and
// back; artifacts come along.
func TestCopiesCrossEngines(t *testing.T) {
	dsn := storetest.PostgresDSN(t)
	var first string
	blobs := openBlobs(t, t.TempDir())
	inWorld(t, func(_ *testing.T, w *et.World, _ *blob.Dir) {
		w.Broker.Say(et.Script(et.Calls(note), et.Text("done")))
		w.Submit(w.Session("assistant"), "first")
		w.Settle()
		first = copyOf(t, store.Config{Path: w.Path}, blobs)
	})
	there, err := backup.Open(first)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(c *backup.Copy, into store.Config) *store.Store {
		t.Helper()
		st, err := c.Fill(t.Context(), into, blobs)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { st.Close() })
		return st
	}
	fill(there, store.Config{DSN: dsn})
	back, err := backup.Open(copyOf(t, store.Config{DSN: dsn}, blobs))
	if err != nil {
		t.Fatal(err)
	}
	st := fill(back, store.Config{Path: filepath.Join(t.TempDir(), "back.db")})
	for table, n := range there.End.Rows {
		if back.End.Rows[table] != n && table != "meta" && table != "floors" {
			t.Errorf("%d rows of %s, %d before", back.End.Rows[table], table, n)
		}
	}
	err = st.View(t.Context(), store.AsLoop("test"), func(tx *store.Tx) error { // INV-8
		sessions, _, err := tx.Sessions(0, "")
		for _, s := range sessions {
			err = errors.Join(err, tx.VerifyEvents(s.ID))
		}
		if len(sessions) == 0 {
			err = errors.New("no session came along")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

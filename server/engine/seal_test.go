package engine_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/ledger"
	"bivouac/server/ledger/ledgertest"
	"bivouac/server/session"
	"bivouac/server/store"
)

// What happened is sealed and signed within seconds; an export proves itself, is
// the caller's own, and goes on where the last one ended. INV-8, INV-9.
func TestLedger(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		signer, err := ledgertest.NewSigner()
		if err != nil {
			t.Fatal(err)
		}
		w.Broker.Receipt = signer.Sign
		w.Broker.Say(et.Script(et.Text("one"), et.Text("two"), et.Text("three")))
		s := w.Session("assistant")
		var file bytes.Buffer
		if err := w.Engine.ExportLedger(ctx(), w.Me(), "", &file); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
			t.Fatalf("before anything is sealed: %v", err)
		}
		done := w.Submit(s, "tell me a secret")
		w.Settle()
		wantState(t, w, done.ID, session.Completed, "")
		w.Sleep(25 * time.Second)
		export := func(c store.Caller, only protocol.SessionID) ledger.Summary {
			t.Helper()
			file.Reset()
			if err := w.Engine.ExportLedger(ctx(), c, only, &file); err != nil {
				t.Fatal(err)
			}
			sum, err := ledger.Verify(bytes.NewReader(file.Bytes()), signer.Fingerprint(), nil)
			if err != nil {
				t.Fatalf("%v\n%s", err, file.String())
			}
			if strings.Contains(file.String(), "secret") {
				t.Error("an export holds words")
			}
			return sum
		}
		first := export(w.Me(), "")
		if want := int64(len(w.Events(s.ID))); first.Events != want || first.Sessions != 1 {
			t.Errorf("%+v, want %d events", first, want)
		}
		// More happens, in this session and in another one, which only its export has.
		other := w.Session("assistant")
		w.Submit(s, "go on")
		w.Submit(other, "hello")
		w.Settle()
		w.Sleep(25 * time.Second)
		whole, one := export(w.Me(), ""), export(w.Me(), s.ID)
		if whole.Sessions != 2 || one.Sessions != 1 || one.Events <= first.Events || whole.Events != one.Events+int64(len(w.Events(other.ID))) {
			t.Errorf("whole %+v, of one %+v, first %+v", whole, one, first)
		}
		// An erased session still proves itself.
		if _, err := w.Engine.EraseSession(ctx(), w.Me(), s.ID); err != nil {
			t.Fatal(err)
		}
		if again := export(w.Me(), s.ID); again.Events < one.Events {
			t.Errorf("after erasure %+v", again)
		}
		_, stranger := w.Principal("elsewhere", "mallory", true)
		_, neighbour := w.Principal("local", "bob", true)
		if err := w.Engine.ExportLedger(ctx(), et.Caller(stranger), s.ID, &file); protocol.CodeOf(err) != protocol.CodeNotFound {
			t.Errorf("a stranger: %v", err)
		}
		if got := export(et.Caller(neighbour), ""); got.Events != 0 {
			t.Errorf("a neighbour's export has %d events", got.Events)
		}
	})
}

// While the broker is away what happens is sealed, and signed once it is back.
func TestLedgerWaitsForTheBroker(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Text("one")))
		turn := w.Submit(w.Session("assistant"), "hello")
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		head := func() (h store.LedgerHead) {
			if err := w.Store.View(ctx(), w.Me(), func(tx *store.Tx) (err error) { h, err = tx.Ledger(w.Tenant.ID); return err }); err != nil {
				t.Fatal(err)
			}
			return h
		}
		w.Broker.SetDown(true)
		w.Sleep(time.Minute)
		if h := head(); h.Size == 0 || h.SignedSize == h.Size {
			t.Errorf("without a broker: %+v", h)
		}
		w.Broker.SetDown(false)
		w.Sleep(time.Minute)
		if h := head(); h.SignedSize != h.Size || h.Receipt == "" {
			t.Errorf("with it again: %+v", h)
		}
	})
}

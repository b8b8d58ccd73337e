package server_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
)

// A ledger that the broker refuses to sign is a problem of the server's doctor, with
// the refusal and its remedy, and a number of /metrics; when it is signed again, both
// are gone. INV-8.
func TestRefusedLedgerIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t)
		w.config.MetricsListener = w.net.Listen(metricsAddr)
		w.startBroker()
		w.startServer()
		w.startFeed()
		w.awaitReady()
		obedient(w)
		operator := w.as(w.token)
		finding := func() *apiv1.Finding {
			t.Helper()
			res, err := operator.Operations.Diagnose(t.Context(), &apiv1.DiagnoseRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return found(res.GetFindings(), "server", "ledger")
		}
		told := func(refused bool, level string) {
			t.Helper()
			f, n := finding(), number(t, w.page(), "bivouac_ledgers_refused")
			if f.GetLevel() != level || strings.Contains(f.GetMend(), "bivouac-broker ledger accept") != refused ||
				strings.Contains(f.GetWhat(), "shorter than what was signed") != refused || n == 1 != refused {
				t.Errorf("refused %v: %v, and %v on the page", refused, f, n)
			}
		}
		told(false, "ok")
		w.broker.RefuseHeads(protocol.Errorf(protocol.CodeDataLoss, "the ledger is shorter than what was signed"))
		w.apply(operator, clerk)
		w.awaitTurn(operator, w.submit(operator, w.open(operator, "clerk"), "m1", "hello").GetId(), "COMPLETED")
		time.Sleep(time.Minute)
		told(true, "problem")
		w.broker.RefuseHeads(nil)
		time.Sleep(time.Minute)
		told(false, "ok")
	})
}

package main

import (
	"bytes"
	"time"

	"bivouac/server/ledger"
	"bivouac/server/ledger/ledgertest"
)

// ledgerFigures proves an export of a hundred thousand events, as a person would
// without a server.
func ledgerFigures() error {
	s, err := ledgertest.NewSigner()
	if err != nil {
		return err
	}
	var file bytes.Buffer
	if err := ledgertest.Write(&file, s, ledgertest.Shape{Sessions: 40, Segments: 10, Events: 250}); err != nil {
		return err
	}
	best := 0.0
	for range 3 {
		begun := time.Now()
		sum, err := ledger.Verify(bytes.NewReader(file.Bytes()), s.Fingerprint(), nil)
		if err != nil {
			return err
		}
		best = max(best, float64(sum.Events)/time.Since(begun).Seconds())
	}
	report("ledger_verify", best, "events/s", 200_000, true)
	return nil
}

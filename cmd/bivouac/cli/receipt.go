package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/server/ledger"
)

// maxReceipt bounds a receipt; an export may be far larger.
const maxReceipt = 1 << 20

// receiptIn reads a file that holds one signed receipt: a compact signature, whose
// header is JSON in base64, and nothing else.
func receiptIn(path string) (jws string, ok bool) {
	f, err := os.Open(path)
	if err != nil {
		return "", false // said by who reads it as an export
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxReceipt))
	jws = strings.TrimSpace(string(b))
	return jws, err == nil && strings.HasPrefix(jws, "eyJ") && strings.Count(jws, ".") == 2 && !strings.ContainsAny(jws, " \t\n")
}

// verifyReceipt proves a receipt by the root, and prints what was signed.
func (a *app) verifyReceipt(path, jws, fingerprint string) error {
	fingerprint, err := a.trusted(fingerprint)
	if err != nil {
		return err
	}
	signed, err := ledger.OpenReceipt(jws, fingerprint)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"receipt": json.RawMessage(signed), "root": fingerprint})
	}
	var text bytes.Buffer
	if err := json.Indent(&text, signed, "", "  "); err != nil {
		return protocol.Errorf(protocol.CodeDataLoss, "what was signed in %s is no JSON: %w", path, err)
	}
	_, err = fmt.Fprintf(a.out, "%s holds, signed under the root %s:\n%s\n", path, fingerprint, harmless(text.String()))
	return err
}

package vaultpolicy

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/vaultpolicy/client"
)

// Certifier lends the root's word for a receipt key: the broker's keyring.
type Certifier interface {
	SignReceiptBy(receipt []byte, key ed25519.PublicKey, sign func(input []byte) ([]byte, error)) (string, error)
}

// SignReceipt signs with the server's receipt key, which never leaves it. The
// receipt is checked as one of the keyring's is: its chain ends at the same root.
func (v *Vault) SignReceipt(ctx context.Context, receipt []byte, by Certifier) (string, error) {
	const what = "sign receipts"
	a, err := v.read(ctx, what, v.names.Transit+"/keys/"+v.names.ReceiptKey())
	if err != nil {
		return "", err
	}
	version := client.Number(a.Data["latest_version"])
	newest := client.Map(client.Map(a.Data["keys"])[number(a.Data["latest_version"])])
	key, err := base64.StdEncoding.DecodeString(client.Text(newest["public_key"]))
	if err != nil || client.Text(a.Data["type"]) != "ed25519" || len(key) != ed25519.PublicKeySize {
		return "", protocol.Errorf(protocol.CodeFailedPrecondition, "the key %s in the server is no Ed25519 key: bivouac vault check says so", v.names.ReceiptKey())
	}
	return by.SignReceiptBy(receipt, key, func(input []byte) ([]byte, error) {
		a, err := v.write(ctx, what, v.names.Transit+"/sign/"+v.names.ReceiptKey(), map[string]any{
			"input": base64.StdEncoding.EncodeToString(input), "key_version": version,
		})
		if err != nil {
			return nil, err
		}
		part := strings.SplitN(client.Text(a.Data["signature"]), ":", 3) // vault:v1:…
		return base64.StdEncoding.DecodeString(part[len(part)-1])
	})
}

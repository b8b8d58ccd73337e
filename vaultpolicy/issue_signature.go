package vaultpolicy

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/server/broker/issued"
	"bivouac/vaultpolicy/client"
)

// signer signs with transit, under the action's token: the key stays in the server, and
// a grant that ended signs nothing more, in the middle of an action too.
func (i issue) signer(context.Context) (issued.Credential, error) {
	return issued.Credential{SignFunc: i.sign}, nil
}

// forms are what transit is asked for by algorithms: what it gives back is what
// RFC 9421 has there.
var forms = map[string]map[string]any{
	issued.Ed25519:    {},
	issued.ECDSAP256:  {"hash_algorithm": "sha2-256", "marshaling_algorithm": "jws"},
	issued.RSAPKCS1:   {"hash_algorithm": "sha2-256", "signature_algorithm": "pkcs1v15"},
	issued.HMACSHA256: {},
}

func (i issue) sign(ctx context.Context, text []byte) ([]byte, error) {
	body := map[string]any{"input": base64.StdEncoding.EncodeToString(text)}
	for k, v := range forms[i.from.Algorithm] {
		body[k] = v
	}
	a, err := i.v.client.Write(ctx, i.action, i.from.Path(), body)
	if err != nil {
		return nil, i.failed(ctx, err)
	}
	field := "signature"
	if i.from.Algorithm == issued.HMACSHA256 {
		field = "hmac"
	}
	signature, err := signatureOf(client.Text(a.Data[field]), i.from.Algorithm)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the credential %q cannot be used: its %s does not sign with %s: %w; its admin looks: vault read %s", i.c.Name, i.from, i.from.Algorithm, err, i.from.RolePath())
	}
	return signature, nil
}

// minRSA is the shortest signature of a key of RSA that these servers make.
const minRSA = 256

// lengths of signatures whose key does not decide it. Most keys of another type show
// by theirs; where two have the same, the upstream refuses the signature.
var lengths = map[string]int{issued.Ed25519: 64, issued.ECDSAP256: 64, issued.HMACSHA256: 32}

// signatureOf takes transit's frame off, such as "vault:v1:…".
func signatureOf(text, algorithm string) ([]byte, error) {
	part := strings.SplitN(text, ":", 3)
	if len(part) != 3 || part[0] != "vault" {
		return nil, errors.New("the server signed in a form that is not known")
	}
	encoding := base64.StdEncoding
	if algorithm == issued.ECDSAP256 {
		encoding = base64.RawURLEncoding // as JWS has it (RFC 7515)
	}
	out, err := encoding.DecodeString(part[2])
	if want := lengths[algorithm]; err != nil || want != 0 && len(out) != want || algorithm == issued.RSAPKCS1 && len(out) < minRSA {
		return nil, errors.New("its key is of another type")
	}
	return out, nil
}

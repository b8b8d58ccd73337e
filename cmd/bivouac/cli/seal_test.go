package cli

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/go-jose/go-jose/v4"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
)

// A credential leaves this machine only for the broker that the pinned root names:
// a server that shows another root, another signature or another recipient gets
// nothing. INV-17.
func TestSealTrustsTheRootAlone(t *testing.T) {
	root, other := identitytest.NewRoot(), identitytest.NewRoot()
	broker, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	thief, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	state := func(key ed25519.PrivateKey, recipient string) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: key}, nil)
		if err != nil {
			t.Fatal(err)
		}
		jws, err := signer.Sign([]byte(`{"recipient":"` + recipient + `"}`))
		if err != nil {
			t.Fatal(err)
		}
		text, err := jws.CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	mine, stolen := broker.Recipient().String(), thief.Recipient().String()
	honest := func() *apiv1.GetSealRecipientResponse {
		return &apiv1.GetSealRecipientResponse{RootCertificate: root.Certificate.Raw, Recipient: mine, Statement: state(root.Key, mine)}
	}
	for name, lie := range map[string]func(*apiv1.GetSealRecipientResponse){
		"nothing":      func(*apiv1.GetSealRecipientResponse) {},
		"another root": func(r *apiv1.GetSealRecipientResponse) { r.RootCertificate = other.Certificate.Raw },
		"a whole other set": func(r *apiv1.GetSealRecipientResponse) {
			*r = apiv1.GetSealRecipientResponse{RootCertificate: other.Certificate.Raw, Recipient: stolen, Statement: state(other.Key, stolen)}
		},
		"another key":       func(r *apiv1.GetSealRecipientResponse) { r.Recipient, r.Statement = stolen, state(other.Key, stolen) },
		"another recipient": func(r *apiv1.GetSealRecipientResponse) { r.Recipient = stolen },
		"no statement":      func(r *apiv1.GetSealRecipientResponse) { r.Statement = "" },
		"no certificate":    func(r *apiv1.GetSealRecipientResponse) { r.RootCertificate = nil },
	} {
		r := honest()
		lie(r)
		sealed, err := seal(r, identity.Fingerprint(root.Certificate), "weather", "the value")
		if name == "nothing" {
			wantOpened(t, sealed, broker)
			if err != nil {
				t.Errorf("the honest server: %v", err)
			}
			continue
		}
		if err == nil || sealed != nil || strings.Contains(err.Error(), "the value") {
			t.Errorf("%s: sealed %d bytes, %v", name, len(sealed), err)
		}
		if code := protocol.CodeOf(err); code != protocol.CodePermissionDenied && code != protocol.CodeDataLoss {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func wantOpened(t *testing.T, sealed []byte, by age.Identity) {
	t.Helper()
	r, err := age.Decrypt(bytes.NewReader(sealed), by)
	if err != nil {
		t.Fatalf("the broker cannot open it: %v", err)
	}
	b, err := io.ReadAll(r)
	var said map[string]string
	if err == nil {
		err = json.Unmarshal(b, &said)
	}
	if err != nil || said["name"] != "weather" || said["value"] != "the value" {
		t.Errorf("the broker opens %v: %v", said, err)
	}
}

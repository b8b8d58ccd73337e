// Package ledgertest signs heads as a broker's receipt key does, and makes
// exports of any size.
package ledgertest

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"io"
	"math/big"
	"time"

	"github.com/go-jose/go-jose/v4"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/ledger"
)

// Signer is a receipt key under a root.
type Signer struct {
	Root    *x509.Certificate
	receipt *x509.Certificate
	key     ed25519.PrivateKey
}

// NewSigner makes a root and a receipt key.
func NewSigner() (*Signer, error) {
	rootPub, rootKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	s := &Signer{key: key}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	if s.Root, err = made(t, t, rootPub, rootKey); err != nil {
		return nil, err
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "receipts"}, NotBefore: t.NotBefore, NotAfter: t.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature}
	s.receipt, err = made(leaf, s.Root, pub, rootKey)
	return s, err
}

func made(t, parent *x509.Certificate, pub ed25519.PublicKey, by ed25519.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, by)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Fingerprint of the root.
func (s *Signer) Fingerprint() string { return identity.Fingerprint(s.Root) }

// Sign a receipt, with the chain in the signature.
func (s *Signer) Sign(receipt []byte) (string, error) {
	opts := (&jose.SignerOptions{}).WithType("bivouac-receipt").WithHeader("x5c", []string{
		base64.StdEncoding.EncodeToString(s.receipt.Raw), base64.StdEncoding.EncodeToString(s.Root.Raw)})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: s.key}, opts)
	if err != nil {
		return "", err
	}
	sig, err := signer.Sign(receipt)
	if err != nil {
		return "", err
	}
	return sig.CompactSerialize()
}

// Shape of a made ledger.
type Shape struct {
	Sessions, Segments, Events int // segments of each session, events of each segment
}

// Session number i of a made ledger.
func Session(i int) protocol.SessionID { return protocol.SessionID(fmt.Sprintf("ses_%026d", i)) }

// Write makes a ledger of a shape and exports it whole.
func Write(w io.Writer, s *Signer, shape Shape) error {
	type run struct {
		segment ledger.Segment
		events  [][2][]byte
	}
	var runs []run
	for i := range shape.Sessions {
		var hash []byte
		for j := range shape.Segments {
			r := run{segment: ledger.Segment{Session: Session(i), From: int64(j*shape.Events + 1), To: int64((j + 1) * shape.Events)}}
			for k := range shape.Events {
				stored := stored(Session(i), j*shape.Events+k+1)
				sum := sha256.Sum256(append(bytes.Clone(hash), stored...))
				hash = sum[:]
				r.events = append(r.events, [2][]byte{stored, bytes.Clone(hash)})
			}
			r.segment.Hash = bytes.Clone(hash)
			runs = append(runs, r)
		}
	}
	var kept []ledger.Hash
	read := func(indexes []int64) (out []ledger.Hash, err error) {
		for _, i := range indexes {
			out = append(out, kept[i])
		}
		return out, nil
	}
	for n, r := range runs {
		_, more, err := ledger.Grow(int64(n), r.segment, read)
		if err != nil {
			return err
		}
		kept = append(kept, more...)
	}
	size := int64(len(runs))
	root, err := ledger.Root(size, read)
	if err != nil {
		return err
	}
	receipt, err := ledger.Head{Tenant: "ten_00000000000000000000000000", Size: size, Root: root, At: time.Unix(1796000000, 0)}.Receipt()
	if err != nil {
		return err
	}
	head, err := s.Sign(receipt)
	if err != nil {
		return err
	}
	out := ledger.NewWriter(w, head)
	for n, r := range runs {
		proof, err := ledger.Prove(size, int64(n), read)
		if err != nil {
			return err
		}
		if err := out.Segment(int64(n), r.segment, proof); err != nil {
			return err
		}
		for _, e := range r.events {
			if err := out.Event(e[0], e[1]); err != nil {
				return err
			}
		}
	}
	return out.Close()
}

// stored is an event of usual size.
func stored(s protocol.SessionID, seq int) []byte {
	return fmt.Appendf(nil, `{"action":"act_%026d","at":1796000000000000,"data":{"alias":"files_read","call_id":"call_%d","code":"","status":"ok"},"payload_digest":"%064x","seq":%d,"session":"%s","turn":"trn_%026d","type":"tool.finished"}`, seq, seq, seq, seq, s, seq/8)
}

package state

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"

	"bivouac/edge/filemode"
	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

// Key is the device key; with make it is made when there is none. One that others
// may have read is refused.
func (d *Dir) Key(make bool) (ed25519.PrivateKey, error) {
	if err := filemode.Secret(d.file("device.key")); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(d.file("device.key"))
	if errors.Is(err, fs.ErrNotExist) && make {
		return d.makeKey()
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the device key cannot be read: %w; run `%s` again", err, d.Command("join URL CODE"))
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, d.badKey("it is no PEM file")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, d.badKey(err.Error())
	}
	ed, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, d.badKey("it is no Ed25519 key")
	}
	return ed, nil
}

func (d *Dir) badKey(why string) error {
	return protocol.Errorf(protocol.CodeDataLoss, "%s is damaged: %s; run `%s` and join again", d.file("device.key"), why, d.Command("leave --force"))
}

func (d *Dir) makeKey() (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, d.write("device.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

// SaveRoot pins the root.
func (d *Dir) SaveRoot(root *x509.Certificate) error {
	return d.write("root.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Raw}), 0o600)
}

// Root is the pinned root.
func (d *Dir) Root() (*x509.Certificate, error) {
	certs, err := d.certificates("root.crt")
	if err != nil {
		return nil, err
	}
	return certs[0], nil
}

// SaveCertificate stores a chain after a check that it is of the device key.
func (d *Dir) SaveCertificate(chain []byte) error {
	key, err := d.Key(false)
	if err != nil {
		return err
	}
	certs, err := identity.ParsePEM(chain)
	if err != nil {
		return err
	}
	if !key.Public().(ed25519.PublicKey).Equal(certs[0].PublicKey) {
		return protocol.Errorf(protocol.CodeDataLoss, "the server sent a certificate of another key")
	}
	return d.write("runner.crt", chain, 0o600)
}

// Certificate is the newest chain with the device key, read from disk each time
// so that every process of the runner sees a renewal.
func (d *Dir) Certificate() (*tls.Certificate, error) {
	key, err := d.Key(false)
	if err != nil {
		return nil, err
	}
	certs, err := d.certificates("runner.crt")
	if err != nil {
		return nil, err
	}
	out := &tls.Certificate{PrivateKey: key, Leaf: certs[0]}
	for _, c := range certs {
		out.Certificate = append(out.Certificate, c.Raw)
	}
	return out, nil
}

func (d *Dir) certificates(name string) ([]*x509.Certificate, error) {
	b, err := os.ReadFile(d.file(name))
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the certificate cannot be read: %w; run `%s` again", err, d.Command("join URL CODE"))
	}
	certs, err := identity.ParsePEM(b)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "%s is damaged: %w; run `%s` and join again", d.file(name), err, d.Command("leave --force"))
	}
	return certs, nil
}

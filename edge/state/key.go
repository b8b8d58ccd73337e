package state

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
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
	if errors.Is(err, fs.ErrNotExist) {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the device key of %s is gone, and nothing else shows that this is the machine that joined: forget it with `%s`, then run `%s` with a new code", d.path, d.Command("leave --force"), d.Command("join URL CODE"))
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the device key cannot be read: %w; see `ls -l %s`", err, d.path)
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
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the root that server and broker are known by is lost: %w; forget this runner with `%s`, then run `%s` with a new code", err, d.Command("leave --force"), d.Command("join URL CODE"))
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

// CertificateLost reports a certificate that is missing or damaged while the device
// key is there: the server gives that key a new one.
func (d *Dir) CertificateLost() bool {
	if _, err := d.Key(false); err != nil {
		return false
	}
	_, err := d.certificates("runner.crt")
	return err != nil
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
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the certificate is lost: %w; `%s` gets a new one with the device key", err, d.Command("run"))
	}
	out := &tls.Certificate{PrivateKey: key, Leaf: certs[0]}
	for _, c := range certs {
		out.Certificate = append(out.Certificate, c.Raw)
	}
	return out, nil
}

// certificates of a file; the caller says what mends it.
func (d *Dir) certificates(name string) ([]*x509.Certificate, error) {
	b, err := os.ReadFile(d.file(name))
	if err != nil {
		return nil, err
	}
	certs, err := identity.ParsePEM(b)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", d.file(name), err)
	}
	return certs, nil
}

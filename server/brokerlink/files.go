package brokerlink

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"bivouac/edge/durable"
	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

// Files of the server's identity inside its data directory.
const (
	keyFile   = "server.key"
	chainFile = "server.crt"
	rootFile  = "root.crt"
)

// loadKey reads the server's TLS key, or makes it at the first start. The key
// stays for the life of the data directory; only its certificate changes.
func loadKey(dir string) (ed25519.PrivateKey, error) {
	path := filepath.Join(dir, keyFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(path)
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the server's key cannot be read: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, badKey(path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, badKey(path)
	}
	return key, nil
}

func badKey(path string) error {
	return protocol.Errorf(protocol.CodeDataLoss,
		"%s is not an Ed25519 key: restore it from a backup, or remove it together with %s and enrol again with a code of bivouac-broker server-code", path, chainFile)
}

func makeKey(path string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return key, writeFile(path, text, 0o600)
}

// loadCertificate reads chain and root; absent files are no error and no
// certificate: the server is not enrolled yet.
func loadCertificate(dir string, key ed25519.PrivateKey) (*credentials, error) {
	chain, err := os.ReadFile(filepath.Join(dir, chainFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the server's certificate cannot be read: %w", err)
	}
	root, err := os.ReadFile(filepath.Join(dir, rootFile))
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the root certificate cannot be read: %w", err)
	}
	return newCredentials(key, chain, root)
}

// credentials are what the server shows and what it believes.
type credentials struct {
	leaf     tls.Certificate
	root     *x509.Certificate
	chainPEM []byte
	rootPEM  []byte
}

func newCredentials(key ed25519.PrivateKey, chain, root []byte) (*credentials, error) {
	roots, err := identity.ParsePEM(root)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the root certificate is not readable: %w", err)
	}
	certs, err := identity.ParsePEM(chain)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the server's certificate is not readable: %w", err)
	}
	if pub, ok := certs[0].PublicKey.(ed25519.PublicKey); !ok || !pub.Equal(key.Public()) {
		return nil, protocol.Errorf(protocol.CodeDataLoss,
			"the server's certificate belongs to another key: restore %s, or remove it together with %s and enrol again", keyFile, chainFile)
	}
	c := &credentials{root: roots[0], chainPEM: chain, rootPEM: root}
	c.leaf = tls.Certificate{PrivateKey: key, Leaf: certs[0]}
	for _, cert := range certs {
		if !cert.Equal(c.root) { // the listener appends the root itself
			c.leaf.Certificate = append(c.leaf.Certificate, cert.Raw)
		}
	}
	return c, nil
}

func (c *credentials) save(dir string) error {
	if err := writeFile(filepath.Join(dir, rootFile), c.rootPEM, 0o644); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, chainFile), c.chainPEM, 0o644)
}

// writeFile replaces a file so that a crash leaves the old or the new content.
func writeFile(path string, content []byte, mode os.FileMode) error {
	if err := durable.Replace(path, content, mode); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s cannot be written: %w", path, err)
	}
	return nil
}

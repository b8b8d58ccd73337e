package keyring

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"filippo.io/age"

	"bivouac/edge/durable"
	"bivouac/edge/filemode"
	"bivouac/edge/identity"
	"bivouac/edge/lockfile"
	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
	"bivouac/server/capability"
)

// Keyring is an open keyring. It implements the broker's Authority and Root
// ports and prints as REDACTED.
type Keyring struct {
	dir  string
	id   *age.X25519Identity
	lock *lockfile.Lock

	root        ed25519.PrivateKey
	rootCert    *x509.Certificate
	receipt     ed25519.PrivateKey
	receiptCert *x509.Certificate
	seal        *age.X25519Identity
	grants      cipher.AEAD
	statement   string // the root's word about the seal recipient
	receipts    receiptKeys

	mu      sync.Mutex // one change at a time, until it is durable
	content atomic.Pointer[content]
}

// Format keeps every verb of fmt away from the keys.
func (k *Keyring) Format(s fmt.State, _ rune) { io.WriteString(s, "keyring REDACTED") } // like fmt itself

// Init makes a new keyring in dir and returns the fingerprint of its root. An
// existing one is never touched.
// With a passphrase its key is sealed with that.
func Init(dir string, with ...Passphrase) (fingerprint string, err error) {
	if err := prepare(dir); err != nil {
		return "", err
	}
	if err := untouched(dir); err != nil {
		return "", err
	}
	c, err := newContent(time.Now())
	if err != nil {
		return "", err
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", err
	}
	sealed, err := c.seal(id.Recipient())
	if err != nil {
		return "", err
	}
	key, err := sealIdentity(id, with)
	if err != nil {
		return "", err
	}
	held, err := lock(dir)
	if err != nil {
		return "", err
	}
	defer held.Release()                   // only a lock
	if err := untouched(dir); err != nil { // one may have come while a passphrase was typed
		return "", err
	}
	if err := durable.Replace(filepath.Join(dir, keyFile), key, 0o600); err != nil {
		return "", writeError(dir, err)
	}
	if err := durable.Replace(filepath.Join(dir, keyringFile), sealed, 0o600); err != nil {
		return "", writeError(dir, err)
	}
	root, err := x509.ParseCertificate(c.RootCert)
	if err != nil {
		return "", err
	}
	return identity.Fingerprint(root), nil
}

// Has reports that a whole keyring is in dir: neither of its files is missing.
func Has(dir string) bool {
	for _, name := range []string{keyringFile, keyFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// untouched refuses a directory that has a keyring, or the key of one.
func untouched(dir string) error {
	for _, name := range []string{keyringFile, keyFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return protocol.Errorf(protocol.CodeAlreadyExists,
				"%s is there already: a keyring is never overwritten, because everything that trusts it would be lost; use it, or choose another --data", filepath.Join(dir, name))
		}
	}
	return nil
}

func writeError(dir string, err error) error {
	return protocol.Errorf(protocol.CodeFailedPrecondition, "the keyring in %s cannot be written: %w; make room, or make it yours with chown and chmod 700, or name another with --data", dir, err)
}

// Open opens the keyring for the one broker that may change it.
// with says the passphrase of its key, where it has one.
func Open(dir string, with ...Passphrase) (*Keyring, error) {
	if err := filemode.Secret(dir); err != nil {
		return nil, absent(dir, filepath.Join(dir, keyringFile), err)
	}
	held, err := lock(dir)
	if err != nil {
		return nil, err
	}
	k, err := read(dir, with...)
	if err != nil {
		held.Release() // the first error says it
		return nil, err
	}
	k.lock = held
	return k, nil
}

// read opens without the lock.
func read(dir string, with ...Passphrase) (*Keyring, error) {
	id, err := readIdentity(dir, with)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, keyringFile)
	sealed, err := readPrivate(path)
	if err != nil {
		return nil, absent(dir, path, err)
	}
	c, err := unseal(sealed, id)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeOf(err), "%s: %w; restore keyring.age and keyring.key from one backup", path, err)
	}
	return assemble(dir, id, c)
}

func assemble(dir string, id *age.X25519Identity, c *content) (*Keyring, error) {
	k := &Keyring{dir: dir, id: id, root: ed25519.NewKeyFromSeed(c.RootSeed), receipt: ed25519.NewKeyFromSeed(c.ReceiptSeed)}
	c.index()
	k.content.Store(c)
	block, err := aes.NewCipher(c.GrantKey)
	if err != nil {
		return nil, err
	}
	var errs [5]error
	k.grants, errs[0] = cipher.NewGCMWithRandomNonce(block)
	k.rootCert, errs[1] = x509.ParseCertificate(c.RootCert)
	k.receiptCert, errs[2] = x509.ParseCertificate(c.ReceiptCert)
	k.seal, errs[3] = age.ParseX25519Identity(c.Seal)
	if err := errors.Join(errs[:4]...); err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the keyring in %s is damaged: restore it from a backup", dir)
	}
	k.statement, errs[4] = signJWS(k.root, capability.KeyID(k.root.Public().(ed25519.PublicKey)), sealType, []byte(`{"recipient":"`+k.seal.Recipient().String()+`"}`), nil)
	return k, errs[4]
}

// Close forgets nothing but the lock.
func (k *Keyring) Close() error {
	if k.lock == nil {
		return nil
	}
	return k.lock.Release()
}

// BrokerID is stable over restarts.
func (k *Keyring) BrokerID() string { return k.content.Load().BrokerID }

// ResetKey lets a restarted broker tell old QUIC connections that they are gone.
func (k *Keyring) ResetKey() *[32]byte {
	mac := hmac.New(sha256.New, k.content.Load().GrantKey)
	mac.Write([]byte("bivouac quic reset v1"))
	return (*[32]byte)(mac.Sum(nil))
}

// update changes a copy of the content and makes it durable before it counts.
// Readers never wait for it.
func (k *Keyring) update(change func(*content) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	next := k.content.Load().clone()
	if err := change(next); errors.Is(err, errUnchanged) {
		return nil
	} else if err != nil {
		return err
	}
	sealed, err := next.seal(k.id.Recipient())
	if err != nil {
		return err
	}
	if err := durable.Replace(filepath.Join(k.dir, keyringFile), sealed, 0o600); err != nil {
		return writeError(k.dir, err)
	}
	next.index()
	k.content.Store(next)
	return nil
}

// errUnchanged is a change that finds everything as it shall be.
var errUnchanged = errors.New("unchanged")

func (c *content) clone() *content {
	next := *c
	next.Servers = append([]server(nil), c.Servers...)
	next.Credentials = append([]storedCredential(nil), c.Credentials...)
	next.Grants = append(next.Grants[:0:0], c.Grants...)
	return &next
}

// now in whole microseconds: what is stored is what is compared.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// credential finds a value.
func (c *content) credential(tenant protocol.TenantID, name string) (secret.Value, bool) {
	for _, s := range c.Credentials {
		if s.Tenant == tenant && s.Name == name {
			v, err := secret.New(s.Value)
			return v, err == nil
		}
	}
	return secret.Value{}, false
}

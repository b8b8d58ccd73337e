package keyring

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
)

// Passphrase says the passphrase with which keyring.key is sealed. It is asked only
// where one is needed, and once.
type Passphrase func() (string, error)

const (
	// minPassphrase is the shortest that a keyring is sealed with.
	minPassphrase = 12
	maxPassphrase = 1024
	// ageHeader begins every file of age.
	ageHeader = "age-encryption.org/"
)

// workFactor of scrypt: about a second of one core, and 256 MiB. Tests have less.
var workFactor = 18

// needsPassphrase is the refusal of whoever has none. Its code tells it from a keyring
// that is in use.
func needsPassphrase(path string) error {
	return protocol.Errorf(protocol.CodeUnauthenticated, "%s is sealed with a passphrase, and none was given: name the file that holds it with --passphrase-file FILE, or type it with --passphrase-file prompt", path)
}

// say asks for the passphrase; none where nobody is to be asked.
func say(with []Passphrase) (text string, given bool, err error) {
	if len(with) == 0 || with[0] == nil {
		return "", false, nil
	}
	text, err = with[0]()
	return text, err == nil, err
}

// newPassphrase refuses what is too short to seal anything with.
func newPassphrase(text string) error {
	if n := len(text); n < minPassphrase || n > maxPassphrase || strings.ContainsAny(text, "\r\n\x00") {
		return protocol.Errorf(protocol.CodeInvalidArgument, "a passphrase has %d to %d bytes on one line: choose some words that nobody says together", minPassphrase, maxPassphrase)
	}
	return nil
}

// sealIdentity is the content of keyring.key: plain, or sealed with a passphrase.
func sealIdentity(id *age.X25519Identity, with []Passphrase) ([]byte, error) {
	plain := []byte("# age identity of the Bivouac keyring beside it. Keep both together, readable by their owner alone.\n" + id.String() + "\n")
	text, given, err := say(with)
	if err != nil || !given {
		return plain, err
	}
	defer clear(plain)
	return sealWith(plain, text)
}

// sealWith encrypts something small with a passphrase.
func sealWith(plain []byte, passphrase string) ([]byte, error) {
	if err := newPassphrase(passphrase); err != nil {
		return nil, err
	}
	to, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return nil, err
	}
	to.SetWorkFactor(workFactor)
	return encrypt(plain, to)
}

// encrypt for all of the recipients.
func encrypt(plain []byte, to ...age.Recipient) ([]byte, error) {
	var out bytes.Buffer
	w, err := age.Encrypt(&out, to...)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil { // writes the last chunk
		return nil, err
	}
	return out.Bytes(), nil
}

// openWith decrypts what a passphrase sealed. name is what it is, for the refusal.
func openWith(sealed []byte, passphrase, name string, limit int64) ([]byte, error) {
	id, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the passphrase is empty")
	}
	r, err := age.Decrypt(bytes.NewReader(sealed), id)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeUnauthenticated, "the passphrase does not open %s: nothing was changed; try another, or look whether the file ends with a blank that belongs to it", name)
	}
	plain, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil || int64(len(plain)) > limit {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "%s is damaged: restore it from a backup", name)
	}
	return plain, nil
}

// isSealed reports a file that a passphrase sealed.
func isSealed(text []byte) bool { return bytes.HasPrefix(text, []byte(ageHeader)) }

// Sealed reports that the keyring in dir needs a passphrase.
func Sealed(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, keyFile))
	return err == nil && isSealed(text)
}

// Rekey makes a new key for the keyring, sealed with another passphrase or, without
// one, plain. Whoever holds the old keyring.key, or its passphrase, opens nothing that
// is written from then on. A crash in between leaves a keyring that opens with the old
// or with the new; the same again brings it to its end.
func (k *Keyring) Rekey(to ...Passphrase) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	next, err := age.GenerateX25519Identity()
	if err != nil {
		return err
	}
	key, err := sealIdentity(next, to)
	if err != nil {
		return err
	}
	// Both open the keyring while the key changes.
	for _, step := range []struct {
		name    string
		content func() ([]byte, error)
	}{
		{keyringFile, func() ([]byte, error) { return k.content.Load().seal(k.id.Recipient(), next.Recipient()) }},
		{keyFile, func() ([]byte, error) { return key, nil }},
		{keyringFile, func() ([]byte, error) { return k.content.Load().seal(next.Recipient()) }},
	} {
		content, err := step.content()
		if err != nil {
			return err
		}
		rekeyStep(step.name)
		if err := durable.Replace(filepath.Join(k.dir, step.name), content, 0o600); err != nil {
			return writeError(k.dir, err)
		}
	}
	k.id = next
	return nil
}

// rekeyStep is where a test looks at each step.
var rekeyStep = func(name string) {}

package keyring

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"filippo.io/age"

	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
)

const (
	keyringFile = "keyring.age"
	keyFile     = "keyring.key"
	codesDir    = "server-codes"
	lockName    = "lock"

	maxKeyring = 64 << 20
	maxSealed  = 64 << 10 // of one credential
)

// readPrivate reads a small file that only its owner may touch.
func readPrivate(path string) ([]byte, error) {
	if err := filemode.Secret(path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// decrypt reads an age file up to a limit.
func decrypt(sealed []byte, with age.Identity, limit int64) ([]byte, error) {
	r, err := age.Decrypt(bytes.NewReader(sealed), with)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "it does not open with its key")
	}
	plain, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil || int64(len(plain)) > limit {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "it is damaged or larger than %d bytes", limit)
	}
	return plain, nil
}

// readIdentity reads keyring.key.
func readIdentity(dir string, with []Passphrase) (*age.X25519Identity, error) {
	path := filepath.Join(dir, keyFile)
	text, err := readPrivate(path)
	if err != nil {
		return nil, absent(dir, path, err)
	}
	if isSealed(text) {
		said, given, err := say(with)
		switch {
		case err != nil:
			return nil, err
		case !given:
			return nil, needsPassphrase(path)
		}
		if text, err = openWith(text, said, path, maxSealed); err != nil {
			return nil, err
		}
	}
	defer clear(text)
	ids, err := age.ParseIdentities(bytes.NewReader(text))
	if err != nil || len(ids) != 1 {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "%s holds no age identity: restore it from a backup", path)
	}
	id, ok := ids[0].(*age.X25519Identity)
	if !ok {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "%s holds another kind of age identity than X25519", path)
	}
	return id, nil
}

// absent tells a missing keyring from an unreadable one.
func absent(dir, path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "there is no keyring in %s: %s is missing; make one with: bivouac-broker init --data %s", dir, filepath.Base(path), dir)
	}
	if protocol.CodeOf(err) != protocol.CodeInternal {
		return err
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "%s cannot be read: %w", path, err)
}

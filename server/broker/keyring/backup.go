package keyring

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"filippo.io/age"

	"bivouac/edge/durable"
	"bivouac/edge/filemode"
	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

const (
	backupKind = "bivouac-keyring-backup"
	maxBackup  = 2 * maxKeyring
)

// Kept are the files beside the keyring that go with it, by name: what they hold is
// not this package's matter.
type Kept map[string][]byte

// copyOf is the plaintext of a backup. It is only ever written sealed.
type copyOf struct {
	Kind    string    `json:"kind"`
	MadeAt  time.Time `json:"made_at"`
	Content *content  `json:"content"`
	Beside  Kept      `json:"beside,omitempty"`
}

// Copy says what a backup holds, without a secret.
type Copy struct {
	MadeAt      time.Time
	Fingerprint string
	Grants      int // alive when it was made
	Credentials int
	Servers     int
	Beside      []string
}

// Backup writes a copy of the keyring in dir, sealed with a passphrase of its own, into
// a file that must be new. It works while a broker runs: what it reads is whole.
func Backup(dir, file string, with Passphrase, beside []string, open ...Passphrase) (Copy, error) {
	k, err := read(dir, open...)
	if err != nil {
		return Copy{}, err
	}
	c := copyOf{Kind: backupKind, MadeAt: now(), Content: k.content.Load(), Beside: Kept{}}
	for _, name := range beside {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Copy{}, protocol.Errorf(protocol.CodeFailedPrecondition, "%s cannot be read: %w", filepath.Join(dir, name), err)
		}
		c.Beside[name] = b
	}
	plain, err := json.Marshal(c)
	if err != nil {
		return Copy{}, err
	}
	defer clear(plain)
	text, err := with()
	if err != nil {
		return Copy{}, err
	}
	sealed, err := sealWith(plain, text)
	if err != nil {
		return Copy{}, err
	}
	err = durable.Create(file, 0o600, func(w io.Writer) error {
		_, err := w.Write(sealed)
		return err
	})
	if errors.Is(err, fs.ErrExist) {
		return Copy{}, protocol.Errorf(protocol.CodeAlreadyExists, "%s is there already: a backup is never overwritten; name another file", file)
	}
	if err != nil {
		return Copy{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the backup cannot be written to %s: %w; make room, or name another place", file, err)
	}
	return c.summary()
}

func (c copyOf) summary() (Copy, error) {
	k, err := assemble("the backup", nil, c.Content)
	if err != nil {
		return Copy{}, err
	}
	out := Copy{MadeAt: c.MadeAt, Fingerprint: identity.Fingerprint(k.rootCert), Credentials: len(c.Content.Credentials), Servers: len(c.Content.Servers)}
	for _, g := range c.Content.Grants {
		if g.RevokedAt.IsZero() {
			out.Grants++
		}
	}
	for name := range c.Beside {
		out.Beside = append(out.Beside, name)
	}
	slices.Sort(out.Beside)
	return out, nil
}

// Restore makes the keyring of a backup in dir, with a new key of its own: plain, or
// sealed with a passphrase. A directory that has a keyring is refused. Files beside it
// that are there already are newer, and stay. Nothing is written before the backup was
// opened and read to its end.
func Restore(file, dir string, with Passphrase, seal ...Passphrase) (Copy, error) {
	if err := vacant(dir); err != nil {
		return Copy{}, err
	}
	c, err := readCopy(file, with)
	if err != nil {
		return Copy{}, err
	}
	out, err := c.summary()
	if err != nil {
		return Copy{}, err
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return Copy{}, err
	}
	key, err := sealIdentity(id, seal)
	if err != nil {
		return Copy{}, err
	}
	c.bringBack()
	sealed, err := c.Content.seal(id.Recipient())
	if err != nil {
		return Copy{}, err
	}
	if err := prepare(dir); err != nil {
		return Copy{}, err
	}
	held, err := lock(dir)
	if err != nil {
		return Copy{}, err
	}
	defer held.Release()                // only a lock
	if err := vacant(dir); err != nil { // one may have come while a passphrase was typed
		return Copy{}, err
	}
	for name, b := range c.Beside {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil || filepath.Base(name) != name {
			continue
		}
		if err := durable.Replace(filepath.Join(dir, name), b, 0o600); err != nil {
			return Copy{}, writeError(dir, err)
		}
	}
	// The key first: without the keyring beside it, it opens nothing, and the same
	// command goes on.
	if err := durable.Replace(filepath.Join(dir, keyFile), key, 0o600); err != nil {
		return Copy{}, writeError(dir, err)
	}
	if err := durable.Replace(filepath.Join(dir, keyringFile), sealed, 0o600); err != nil {
		return Copy{}, writeError(dir, err)
	}
	return out, nil
}

// restored says of which moment a restored keyring is: what was done after it and
// before the restore is not in it.
type restored struct {
	AsOf time.Time `json:"as_of"`
	At   time.Time `json:"at"`
}

// bringBack marks the content of a backup as restored now. A backup of a keyring that
// was restored itself may lack what that one lacked.
func (c *copyOf) bringBack() {
	r := restored{AsOf: c.MadeAt, At: now()}
	if before := c.Content.Restored; before != nil && before.AsOf.Before(r.AsOf) {
		r.AsOf = before.AsOf
	}
	c.Content.Restored = &r
}

// Restored says of which moment a keyring from a backup is, and when it was restored;
// zero for one that never was.
func (k *Keyring) Restored() (asOf, at time.Time) {
	if r := k.content.Load().Restored; r != nil {
		return r.AsOf, r.At
	}
	return time.Time{}, time.Time{}
}

// vacant refuses a directory that has a keyring. A key alone is what a restore left
// that was cut off.
func vacant(dir string) error {
	path := filepath.Join(dir, keyringFile)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return protocol.Errorf(protocol.CodeAlreadyExists, "%s is there already: a keyring is never overwritten, because everything that trusts it would be lost; restore into another --data, or move it away first", path)
	}
	return nil
}

func prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s cannot be made: %w; choose another --data or mend its permissions", dir, err)
	}
	return filemode.Secret(dir)
}

func readCopy(file string, with Passphrase) (copyOf, error) {
	var c copyOf
	sealed, err := os.ReadFile(file)
	if err != nil {
		return c, protocol.Errorf(protocol.CodeInvalidArgument, "the backup cannot be read: %w", err)
	}
	if !isSealed(sealed) {
		return c, protocol.Errorf(protocol.CodeInvalidArgument, "%s is no backup of a broker: bivouac-broker backup makes one; that of the server is restored with bivouac-server restore", file)
	}
	text, err := with()
	if err != nil {
		return c, err
	}
	plain, err := openWith(sealed, text, file, maxBackup)
	if err != nil {
		return c, err
	}
	defer clear(plain)
	if err := json.Unmarshal(plain, &c); err != nil || c.Kind != backupKind || c.Content == nil {
		return c, protocol.Errorf(protocol.CodeInvalidArgument, "%s is no backup of a broker", file)
	}
	return c, c.Content.whole()
}

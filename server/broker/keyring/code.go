package keyring

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"bivouac/edge/durable"
	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

// codeEntry is what is stored of a server code, under its hash.
type codeEntry struct {
	ExpiresAt time.Time `json:"expires_at"`
	// UsedBy is the thumbprint of the key that used it: that key may repeat.
	UsedBy string `json:"used_by,omitempty"`
}

// NewServerCode makes a code for one server. It works while a broker runs on the
// directory: only the code's own file is written.
func NewServerCode(dir string, ttl time.Duration, with ...Passphrase) (identity.Code, error) {
	if ttl <= 0 || ttl > 24*time.Hour {
		return identity.Code{}, protocol.Errorf(protocol.CodeInvalidArgument, "a code lives longer than zero and at most 24h: minutes are enough")
	}
	k, err := read(dir, with...)
	if err != nil {
		return identity.Code{}, err
	}
	code, err := identity.NewCode(identity.CodeServer, identity.Fingerprint(k.rootCert), rand.Reader)
	if err != nil {
		return identity.Code{}, err
	}
	folder := filepath.Join(dir, codesDir)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return identity.Code{}, writeError(dir, err)
	}
	forgetCodes(folder)
	entry, err := json.Marshal(codeEntry{ExpiresAt: now().Add(ttl)})
	if err != nil {
		return identity.Code{}, err
	}
	if err := durable.Replace(codePath(dir, code), entry, 0o600); err != nil {
		return identity.Code{}, writeError(dir, err)
	}
	return code, nil
}

func codePath(dir string, c identity.Code) string {
	return filepath.Join(dir, codesDir, hex.EncodeToString(c.Hash()))
}

// forgetCodes removes codes that ended long ago.
func forgetCodes(folder string) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		if entry, err := readCode(path); err == nil && time.Since(entry.ExpiresAt) > 24*time.Hour {
			os.Remove(path) // tried again with the next code
		}
	}
}

func readCode(path string) (codeEntry, error) {
	var e codeEntry
	b, err := readPrivate(path)
	if err != nil {
		return e, err
	}
	return e, json.Unmarshal(b, &e)
}

// EnrolServer accepts a code from the key that presents it and remembers the
// key. The same key may repeat until the code ends.
func (k *Keyring) EnrolServer(_ context.Context, text string, spki []byte) (serverID string, err error) {
	code, err := identity.ParseCode(identity.CodeServer, text)
	if err != nil {
		return "", err
	}
	if code.Fingerprint != identity.Fingerprint(k.rootCert) {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "the code was made by another broker")
	}
	thumbprint := identity.Thumbprint(spki)
	id := ServerID(spki)
	err = k.update(func(c *content) error {
		if err := useCode(codePath(k.dir, code), thumbprint); err != nil {
			return err
		}
		if !slices.ContainsFunc(c.Servers, func(s server) bool { return s.Thumbprint == thumbprint }) {
			c.Servers = append(c.Servers, server{id.String(), thumbprint, now()})
		}
		return nil
	})
	return id.String(), err
}

// useCode burns a code for one key, durably, before anything is given for it.
func useCode(path, thumbprint string) error {
	const remedy = "make a new one with: bivouac-broker server-code"
	e, err := readCode(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return protocol.Errorf(protocol.CodeUnauthenticated, "the broker knows no such code: %s", remedy)
	case err != nil:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the stored code cannot be read: %w", err)
	case !time.Now().Before(e.ExpiresAt):
		return protocol.Errorf(protocol.CodeUnauthenticated, "the code expired at %s: %s", e.ExpiresAt.Format(time.RFC3339), remedy)
	case e.UsedBy == thumbprint:
		return nil
	case e.UsedBy != "":
		return protocol.Errorf(protocol.CodeUnauthenticated, "the code was used by another server already: %s", remedy)
	}
	e.UsedBy = thumbprint
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return durable.Replace(path, b, 0o600)
}

// EnrolledServer is the id of a server whose key was enrolled: it may come back
// for a certificate although its last one ended. Offline is not terminal.
func (k *Keyring) EnrolledServer(_ context.Context, thumbprint string) (string, error) {
	for _, s := range k.content.Load().Servers {
		if s.Thumbprint == thumbprint {
			return s.ID, nil
		}
	}
	return "", protocol.Errorf(protocol.CodeUnauthenticated, "this key was never enrolled here: make a code with: bivouac-broker server-code")
}

// ServerID is derived from the key, as a runner's id is: the same key is the
// same server.
func ServerID(spki []byte) protocol.ReplicaID {
	sum := sha256.Sum256(spki)
	var u ulid.ULID
	copy(u[:], sum[:])
	return protocol.ReplicaID("rep_" + strings.ToLower(u.String()))
}

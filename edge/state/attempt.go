package state

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/edge/supervise/protocol/supervisev1"
)

// Attempt is the directory of one turn attempt. The daemon makes it before the
// claim, the supervisor works in it, and whoever acts last removes it.
type Attempt struct {
	ID   protocol.AttemptID
	path string
}

// Attempt names the directory of an attempt; it may not exist.
func (d *Dir) Attempt(id protocol.AttemptID) Attempt {
	return Attempt{ID: id, path: filepath.Join(d.file("attempts"), id.String())}
}

// Attempts that have a directory, oldest first.
func (d *Dir) Attempts() ([]Attempt, error) {
	entries, err := os.ReadDir(d.file("attempts"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []Attempt
	for _, e := range entries {
		var id protocol.AttemptID
		if id.UnmarshalText([]byte(e.Name())) == nil && e.IsDir() {
			out = append(out, d.Attempt(id))
		}
	}
	return out, err
}

// OpenAttempt reads the directory that a supervisor was given, and finds the
// state directory above it.
func OpenAttempt(path string) (*Dir, Attempt, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, Attempt{}, err
	}
	var id protocol.AttemptID
	err = id.UnmarshalText([]byte(filepath.Base(abs)))
	if err != nil || filepath.Base(filepath.Dir(abs)) != "attempts" {
		return nil, Attempt{}, protocol.Errorf(protocol.CodeInvalidArgument, "%s is not the directory of an attempt: it must be <state>/attempts/<attempt id>", abs)
	}
	d := &Dir{path: filepath.Dir(filepath.Dir(abs))}
	return d, d.Attempt(id), nil
}

// Path of the directory.
func (a Attempt) Path() string { return a.path }

// Socket that the supervisor listens on.
func (a Attempt) Socket() string { return filepath.Join(a.path, "supervise.sock") }

// Blob is where a blob that the work names is kept, whole.
func (a Attempt) Blob(digest string) string {
	return filepath.Join(a.path, "blobs", Hex(digest))
}

// Hex is the bare hexadecimal form of a digest.
func Hex(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// Make makes the directory with a new boot nonce, before the claim, or returns
// the nonce that is there: one nonce a directory (INV-14).
func (a Attempt) Make() (nonce string, err error) {
	if nonce, err := a.BootNonce(); err == nil {
		return nonce, nil
	}
	if err := os.MkdirAll(filepath.Join(a.path, "blobs"), 0o700); err != nil {
		return "", protocol.Errorf(protocol.CodeUnavailable, "the directory of attempt %s cannot be made: %w", a.ID, err)
	}
	var b [16]byte
	rand.Read(b[:])
	nonce = hex.EncodeToString(b[:])
	return nonce, durable.Replace(filepath.Join(a.path, "boot_nonce"), []byte(nonce), 0o600)
}

// BootNonce of the supervisor of this directory: the daemon's, or of who took it.
func (a Attempt) BootNonce() (string, error) {
	b, err := os.ReadFile(filepath.Join(a.path, "boot_nonce"))
	if errors.Is(err, fs.ErrNotExist) {
		var m Mark
		var ok bool
		if m, ok, err = a.Mark(); err == nil && (!ok || m.Withdrawn) {
			err = protocol.Errorf(protocol.CodeFailedPrecondition, "no supervisor has taken attempt %s", a.ID)
		}
		b = []byte(m.BootNonce)
	}
	if err != nil {
		return "", err
	}
	if b, err := hex.DecodeString(string(b)); err != nil || len(b) != 16 {
		return "", protocol.Errorf(protocol.CodeDataLoss, "the boot nonce of attempt %s is damaged", a.ID)
	}
	return string(b), nil
}

// SaveClaim journals what was claimed, without the capability in its terms:
// that is a secret and is given by the server again (INV-17).
func (a Attempt) SaveClaim(b *supervisev1.BeginRequest) error {
	kept := proto.CloneOf(b)
	if kept.Terms != nil {
		kept.Terms.Capability = ""
	}
	raw, err := proto.Marshal(kept)
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(a.path, "claim"), raw, 0o600)
}

// Claim that was journalled; ok is false when there was none.
func (a Attempt) Claim() (b *supervisev1.BeginRequest, ok bool, err error) {
	raw, err := os.ReadFile(filepath.Join(a.path, "claim"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	b = new(supervisev1.BeginRequest)
	if err == nil {
		err = proto.Unmarshal(raw, b)
	}
	return b, err == nil, err
}

// SaveSandbox leaves what the daemon saw its sandbox enforce, so that a supervisor
// need not try it all again. It is not synced: without it the supervisor looks.
func (a Attempt) SaveSandbox(r sandbox.Report) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(a.path, "sandbox.json"), b, 0o600)
}

// Sandbox is what the daemon saw; the zero report when it left none.
func (a Attempt) Sandbox() (r sandbox.Report) {
	b, err := os.ReadFile(filepath.Join(a.path, "sandbox.json"))
	if err != nil || json.Unmarshal(b, &r) != nil {
		return sandbox.Report{}
	}
	return r
}

// Remove ends the directory. What it was made for goes first: a supervisor that finds
// it half gone does not take it.
func (a Attempt) Remove() error {
	err := os.Remove(filepath.Join(a.path, allocationFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(a.path))
}

package keyring_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/keyring"
)

func says(text string) keyring.Passphrase { return func() (string, error) { return text, nil } }

const phrase, other = "four words nobody says", "four others nobody says"

// files of a keyring, as they are.
func files(t *testing.T, dir string) [2]string {
	t.Helper()
	var out [2]string
	for i, name := range []string{"keyring.age", "keyring.key"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		out[i] = string(b)
	}
	return out
}

// A keyring that is sealed with a passphrase opens with that alone; another one, or
// none, is told apart from everything else and changes nothing.
func TestPassphrase(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "broker")
	if _, err := keyring.Init(dir, says("short")); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("a short one: %v", err)
	}
	fingerprint, err := keyring.Init(dir, says(phrase))
	if err != nil {
		t.Fatal(err)
	}
	before := files(t, dir)
	if strings.Contains(before[1], "AGE-SECRET-KEY") || !keyring.Sealed(dir) || keyring.Sealed(newDir(t)) {
		t.Error("the key is not sealed, or a plain one counts as sealed")
	}
	for what, c := range map[string]struct {
		with []keyring.Passphrase
		says string
	}{
		"none": {nil, "--passphrase-file"}, "nobody to ask": {[]keyring.Passphrase{nil}, "--passphrase-file"}, "another": {[]keyring.Passphrase{says(other)}, "does not open"},
	} {
		if _, err := keyring.Open(dir, c.with...); protocol.CodeOf(err) != protocol.CodeUnauthenticated || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := keyring.NewServerCode(dir, time.Minute, c.with...); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
			t.Errorf("%s, for a code: %v", what, err)
		}
	}
	if files(t, dir) != before {
		t.Error("a refused passphrase changed the keyring")
	}
	if _, err := keyring.NewServerCode(dir, time.Minute, says(phrase)); err != nil {
		t.Error(err)
	}
	k, err := keyring.Open(dir, says(phrase))
	if err != nil || identity.Fingerprint(k.Root()) != fingerprint {
		t.Fatal(err)
	}
	defer k.Close()
	g := authoritytest.NewGrant("weather")
	if _, err := k.CreateGrant(t.Context(), g); err != nil { // writes need it no more
		t.Error(err)
	}
}

// Rekeying goes between plain and sealed, and to another passphrase. A crash before any
// of its steps leaves a keyring that opens, with the old key or with the new one; the
// same again ends it, and then the old key and its passphrase open nothing.
func TestRekey(t *testing.T) {
	for name, c := range map[string]struct{ from, to []keyring.Passphrase }{
		"plain to sealed": {nil, []keyring.Passphrase{says(phrase)}}, "another": {[]keyring.Passphrase{says(phrase)}, []keyring.Passphrase{says(other)}},
		"sealed to plain": {[]keyring.Passphrase{says(phrase)}, nil}, "a new plain one": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for crash := range 4 {
				dir := filepath.Join(t.TempDir(), "broker")
				fingerprint, err := keyring.Init(dir, c.from...)
				if err != nil {
					t.Fatal(err)
				}
				k, err := keyring.Open(dir, c.from...)
				if err != nil {
					t.Fatal(err)
				}
				g := authoritytest.NewGrant("weather")
				if _, err := k.CreateGrant(t.Context(), g); err != nil {
					t.Fatal(err)
				}
				old, step := files(t, dir), 0
				undo := keyring.BeforeRekeyStep(func(string) {
					if step++; step == crash {
						panic(errCrash)
					}
				})
				func() {
					defer func() {
						if r := recover(); r != nil && r != errCrash {
							panic(r)
						}
					}()
					if err := k.Rekey(c.to...); err != nil {
						t.Fatal(err)
					}
				}()
				undo()
				k.Close()
				with := c.from
				if crash == 0 || crash > 2 { // the new key is in its place
					with = c.to
				}
				if k, err = keyring.Open(dir, with...); err != nil {
					t.Fatalf("crash before step %d: %v", crash, err)
				}
				if err := k.Rekey(c.to...); err != nil {
					t.Fatal(err)
				}
				k.Close()
				if k, err = keyring.Open(dir, c.to...); err != nil || identity.Fingerprint(k.Root()) != fingerprint || k.Alive(t.Context(), g.ID) != nil {
					t.Fatalf("crash before step %d, and again: %v", crash, err)
				}
				k.Close()
				now := files(t, dir)
				if err := os.WriteFile(filepath.Join(dir, "keyring.key"), []byte(old[1]), 0o600); err != nil {
					t.Fatal(err)
				}
				if _, err := keyring.Open(dir, c.from...); protocol.CodeOf(err) != protocol.CodeDataLoss {
					t.Errorf("crash before step %d: the old key opens what is written since: %v", crash, err)
				}
				if now[0] == old[0] || now[1] == old[1] {
					t.Error("nothing changed")
				}
			}
		})
	}
}

var errCrash = errors.New("crash")

// A backup is sealed with its own passphrase; what was revoked in it is revoked after a
// restore, root and recipient are the same, and codes that were not used are void.
func TestBackupAndRestore(t *testing.T) {
	dir := newDir(t)
	k := open(t, dir)
	alive, over := authoritytest.NewGrant("weather"), authoritytest.NewGrant("weather")
	if err := k.PutCredential(t.Context(), alive.Tenant, "weather", authoritytest.Seal(t, k, "weather", authoritytest.Value)); err != nil {
		t.Fatal(err)
	}
	sealed, err := k.CreateGrant(t.Context(), alive)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.CreateGrant(t.Context(), over); err != nil {
		t.Fatal(err)
	}
	if _, err := k.RevokeGrant(t.Context(), over.ID); err != nil {
		t.Fatal(err)
	}
	code, err := keyring.NewServerCode(dir, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "heads.json"), []byte("[1]"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "copy")
	made, err := keyring.Backup(dir, file, says(phrase), []string{"heads.json", "absent"})
	if err != nil || made.Grants != 1 || made.Credentials != 1 || len(made.Beside) != 1 {
		t.Fatalf("%+v %v", made, err)
	}
	if b, err := os.ReadFile(file); err != nil || bytes.Contains(b, []byte(authoritytest.Value)) || bytes.Contains(b, []byte("weather")) {
		t.Errorf("the backup shows what is in it: %v", err)
	}
	if _, err := keyring.Backup(dir, file, says(phrase), nil); protocol.CodeOf(err) != protocol.CodeAlreadyExists {
		t.Errorf("over another: %v", err)
	}
	// What is renewed and revoked after the backup.
	rotated, err := k.RotateGrant(t.Context(), alive.ID, "cln_rotation")
	if err == nil {
		err = k.SettleRotation(t.Context(), alive.ID, "cln_rotation")
	}
	if err != nil {
		t.Fatal(err)
	}

	empty := filepath.Join(t.TempDir(), "again")
	for what, c := range map[string]struct {
		file, dir string
		with      string
		want      protocol.Code
		says      string
	}{
		"another passphrase": {file, empty, other, protocol.CodeUnauthenticated, "does not open"},
		"a filled directory": {file, dir, phrase, protocol.CodeAlreadyExists, "never overwritten"},
		"no backup":          {filepath.Join(dir, "heads.json"), empty, phrase, protocol.CodeInvalidArgument, "no backup of a broker"},
		"another's file":     {filepath.Join(dir, "keyring.age"), empty, phrase, protocol.CodeUnauthenticated, "does not open"},
		"no file":            {filepath.Join(dir, "none"), empty, phrase, protocol.CodeInvalidArgument, "cannot be read"},
	} {
		if _, err := keyring.Restore(c.file, c.dir, says(c.with)); protocol.CodeOf(err) != c.want || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Lstat(empty); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: something was written", what)
		}
	}
	if _, err := keyring.Restore(file, empty, says(phrase), says(other)); err != nil {
		t.Fatal(err)
	}
	r, err := keyring.Open(empty, says(other))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	mine, _ := k.Recipient()
	theirs, _ := r.Recipient()
	if identity.Fingerprint(r.Root()) != identity.Fingerprint(k.Root()) || r.BrokerID() != k.BrokerID() || mine != theirs {
		t.Error("it is another broker")
	}
	if v, err := r.Mint(t.Context(), authoritytest.Use(alive, sealed, "weather")); err != nil || !v.Equal(authoritytest.Value) {
		t.Errorf("the grant of the backup: %v", err)
	}
	if err := r.Alive(t.Context(), over.ID); protocol.CodeOf(err) != protocol.CodePermissionDenied {
		t.Errorf("what was revoked before the backup: %v", err)
	}
	// The part that was made since is refused until it is renewed once more.
	if _, err := r.Mint(t.Context(), authoritytest.Use(alive, rotated, "weather")); protocol.DetailOf(err) != protocol.DetailGrantRotated {
		t.Errorf("the part that was made since: %v", err)
	}
	next, err := r.RotateGrant(t.Context(), alive.ID, "cln_another")
	if err == nil {
		err = r.SettleRotation(t.Context(), alive.ID, "cln_another")
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Mint(t.Context(), authoritytest.Use(alive, next, "weather")); err != nil {
		t.Errorf("renewed: %v", err)
	}
	for _, part := range [][]byte{sealed, rotated} {
		if _, err := r.Mint(t.Context(), authoritytest.Use(alive, part, "weather")); protocol.DetailOf(err) != protocol.DetailGrantRotated {
			t.Errorf("an older part after it was renewed: %v", err)
		}
	}
	_, spki := newKey(t)
	if _, err := r.EnrolServer(t.Context(), code.Reveal(), spki); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
		t.Errorf("a code of before: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(empty, "heads.json")); err != nil || string(b) != "[1]" {
		t.Errorf("what goes with it: %s %v", b, err)
	}
}

// A keyring that somebody makes in the directory while a passphrase is typed stays: what
// was under way for it is refused, and goes through where nobody was faster.
func TestNothingIsOverwrittenAfterAPassphrase(t *testing.T) {
	file := filepath.Join(t.TempDir(), "backup.age")
	if _, err := keyring.Backup(newDir(t), file, says(phrase), nil); err != nil {
		t.Fatal(err)
	}
	for what, under := range map[string]func(dir string, with keyring.Passphrase) error{
		"restore": func(dir string, with keyring.Passphrase) error {
			_, err := keyring.Restore(file, dir, with)
			return err
		},
		"restore, sealed": func(dir string, with keyring.Passphrase) error {
			_, err := keyring.Restore(file, dir, says(phrase), with)
			return err
		},
		"init": func(dir string, with keyring.Passphrase) error {
			_, err := keyring.Init(dir, with)
			return err
		},
	} {
		dir, made := filepath.Join(t.TempDir(), "broker"), ""
		err := under(dir, func() (string, error) {
			f, err := keyring.Init(dir)
			made = f
			return phrase, err
		})
		if protocol.CodeOf(err) != protocol.CodeAlreadyExists || !strings.Contains(err.Error(), "is there already") {
			t.Errorf("%s: %v", what, err)
		}
		k, err := keyring.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if now := identity.Fingerprint(k.Root()); now != made {
			t.Errorf("%s: the keyring was overwritten", what)
		}
		k.Close()
		if err := under(filepath.Join(t.TempDir(), "other"), says(phrase)); err != nil {
			t.Errorf("%s, alone: %v", what, err)
		}
	}
}

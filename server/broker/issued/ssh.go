package issued

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// ForceCommand is the critical option with which a host runs one command, whatever it
// is asked for (PROTOCOL.certkeys of OpenSSH).
const ForceCommand = "force-command"

// clockSlack is how far the clocks of the broker and of who issues may be apart.
const clockSlack = time.Minute

// principalForm has no comma, which divides principals, and no pattern of a policy.
var principalForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$`)

func (f *From) signIn(bad func(string, ...any)) {
	seen := map[string]bool{}
	for _, p := range f.Principals {
		if !principalForm.MatchString(p) {
			bad("principals: %q is none: letters, digits, dots, hyphens, underscores and @", p)
		}
		if seen[p] {
			bad("principals: %q stands twice", p)
		}
		seen[p] = true
	}
	f.life(bad)
	if _, err := PublicKeys(f.CAKeys); err != nil {
		bad("ca_keys: %w", err)
	}
}

// PublicKeys of SSH, one a text, as authorized_keys has them.
func PublicKeys(texts []string) (out []ssh.PublicKey, err error) {
	for _, text := range texts {
		key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(text))
		_, certified := key.(*ssh.Certificate)
		if err != nil || certified || len(options) > 0 || len(bytes.TrimSpace(rest)) > 0 {
			return nil, fmt.Errorf("%q is no public key: its type and the key, such as \"ssh-ed25519 AAAA…\", without a host's name or options before them", short(text))
		}
		out = append(out, key)
	}
	return out, nil
}

func short(text string) string { return text[:min(len(text), 60)] }

// Order is what a certificate of SSH is asked for, beside what the block says.
type Order struct {
	Key     ssh.PublicKey
	Command string
	KeyID   string
}

// SSHCertificate reads what an engine signed, and holds it against what was asked for.
// What is wider in anything, or another's, is refused: it would be good for more than
// the one action. INV-10.
func (f *From) SSHCertificate(text string, o Order, now time.Time) (*ssh.Certificate, error) {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(text))
	cert, ok := key.(*ssh.Certificate)
	switch {
	case err != nil || !ok:
		return nil, errors.New("it is no certificate of SSH")
	case !bytes.Equal(cert.Key.Marshal(), o.Key.Marshal()):
		return nil, errors.New("it is for another key")
	case cert.CertType != ssh.UserCert:
		return nil, errors.New("it is a host's certificate, and not a user's")
	}
	for _, check := range []func(*ssh.Certificate, Order, time.Time) error{f.signedBy, f.lives, f.isFor, narrow} {
		if err := check(cert, o, now); err != nil {
			return nil, err
		}
	}
	return cert, nil
}

// signedBy one of the keys that the block names, if it names any.
func (f *From) signedBy(cert *ssh.Certificate, _ Order, _ time.Time) error {
	known, err := PublicKeys(f.CAKeys)
	if err != nil {
		return err
	}
	by := func(k ssh.PublicKey) bool { return bytes.Equal(k.Marshal(), cert.SignatureKey.Marshal()) }
	if len(known) > 0 && !slices.ContainsFunc(known, by) {
		return fmt.Errorf("it is signed by %s %s, which ca_keys does not have: the engine's key was changed, or it is another engine",
			cert.SignatureKey.Type(), ssh.FingerprintSHA256(cert.SignatureKey))
	}
	return nil
}

// lives now, and no longer than asked.
func (f *From) lives(cert *ssh.Certificate, _ Order, now time.Time) error {
	end := now.Add(f.Life() + clockSlack)
	switch {
	case cert.ValidBefore > uint64(end.Unix()): // CertTimeInfinity too
		return fmt.Errorf("it lives until %s, longer than the %s that were asked for", until(cert.ValidBefore), f.TTL)
	case cert.ValidBefore <= uint64(now.Unix()):
		return fmt.Errorf("it ended at %s: the clocks of this machine and of the server differ", until(cert.ValidBefore))
	case cert.ValidAfter > uint64(now.Add(clockSlack).Unix()):
		return fmt.Errorf("it begins at %s: the clocks of this machine and of the server differ", until(cert.ValidAfter))
	}
	return nil
}

func until(t uint64) string {
	if t > 1<<40 {
		return "the end of time"
	}
	return time.Unix(int64(t), 0).UTC().Format(time.RFC3339)
}

// isFor the principals and the action that were asked for, with a good signature.
func (f *From) isFor(cert *ssh.Certificate, o Order, now time.Time) error {
	if have, want := slices.Sorted(slices.Values(cert.ValidPrincipals)), slices.Sorted(slices.Values(f.Principals)); !slices.Equal(have, want) {
		return fmt.Errorf("it is for the principals %q, not for %q", have, want)
	}
	if cert.KeyId != o.KeyID {
		return errors.New("it does not name the action: its key id is another")
	}
	c := ssh.CertChecker{SupportedCriticalOptions: slices.Collect(maps.Keys(cert.CriticalOptions)), Clock: func() time.Time {
		return time.Unix(max(now.Unix(), int64(cert.ValidAfter)), 0)
	}}
	return c.CheckCert(f.Principals[0], cert)
}

// narrow: bound to the command, and allowed nothing beside it.
func narrow(cert *ssh.Certificate, o Order, _ time.Time) error {
	if command, bound := cert.CriticalOptions[ForceCommand]; !bound || command != o.Command {
		return fmt.Errorf("it is not bound to the command (%s)", ForceCommand)
	}
	if len(cert.CriticalOptions) != 1 {
		return fmt.Errorf("it has critical options that were not asked for: %s", strings.Join(slices.Sorted(maps.Keys(cert.CriticalOptions)), ", "))
	}
	if len(cert.Extensions) > 0 {
		return fmt.Errorf("it is too wide: it has %s, and nothing of that was asked for", strings.Join(slices.Sorted(maps.Keys(cert.Extensions)), ", "))
	}
	return nil
}

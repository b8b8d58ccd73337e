package login

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
)

// wrappedEvery is how often a broker that runs looks for a wrapped secret id: it lives
// for a minute or two.
const wrappedEvery = 2 * time.Second

// Intercepted is a wrapped secret id that is not what its name says: somebody else
// opened it, or put it there. It is an alarm, and no failure of the login that is there.
type Intercepted struct {
	File string
	Why  string
	Mend string // what to do about it
}

func (e *Intercepted) Error() string {
	return "the wrapped secret id in " + e.File + " " + e.Why
}

func (a Auth) intercepted(why string) *Intercepted {
	return &Intercepted{a.Wrapped, why, "destroy the secret id that was in it: vault list " + a.secretIDPath() +
		", for each accessor vault write " + a.secretIDPath() + "-accessor/lookup secret_id_accessor=ACCESSOR says its creation_time, and vault write " +
		a.secretIDPath() + "-accessor/destroy secret_id_accessor=ACCESSOR ends the newest (vaultpolicy/README.md, section 7); look in the audit log who asked sys/wrapping/unwrap; remove the file, and carry a new one"}
}

// Waits says how a wrapped secret id stands: none is there, one waits that nobody has
// opened, or one was intercepted. It opens nothing.
func (a Auth) Waits(ctx context.Context, c *client.Client) (left time.Duration, err error) {
	token, err := a.wrapped()
	if err != nil || token.IsZero() {
		return 0, err
	}
	return a.lookup(ctx, c, token)
}

// wrapped reads the file; zero: it is not there.
func (a Auth) wrapped() (secret.Value, error) {
	if a.Wrapped == "" {
		return secret.Value{}, nil
	}
	if _, err := os.Stat(a.Wrapped); errors.Is(err, fs.ErrNotExist) {
		return secret.Value{}, nil
	}
	if err := filemode.Secret(a.Wrapped); err != nil {
		return secret.Value{}, err
	}
	b, err := os.ReadFile(a.Wrapped)
	if err != nil {
		return secret.Value{}, protocol.Errorf(protocol.CodeFailedPrecondition, "a wrapped secret id cannot be read: %w", err)
	}
	defer clear(b)
	token, err := secret.New(strings.TrimSpace(string(b)))
	if err != nil || len(b) > maxFile {
		return secret.Value{}, a.intercepted("is no token that unwraps: it was not whole, or is something else")
	}
	return token, nil
}

// secretIDPath is where a secret id of the role is made.
func (a Auth) secretIDPath() string { return "auth/" + a.Mount + "/role/" + a.Role + "/secret-id" }

// made reports the path of the role's own endpoint, and no other that ends like it: a
// thief may write what he has opened at a path of his own, and wrap the reading of it.
// In a namespace the path may begin with the name of that one.
func (a Auth) made(path string) bool {
	want := a.secretIDPath()
	inside := strings.Trim(a.Namespace, "/")
	return path == want || inside != "" && path == inside+"/"+want
}

// lookup asks who made a wrapping token, and for what. Only one of this role's own
// endpoint is opened: anything else was put there.
func (a Auth) lookup(ctx context.Context, c *client.Client, token secret.Value) (time.Duration, error) {
	said, err := c.Write(ctx, secret.Value{}, "sys/wrapping/lookup", map[string]any{"token": token.Reveal()})
	switch k := client.KindOf(err); {
	case k == client.Invalid || k == client.Refused || k == client.Absent:
		return 0, a.intercepted("cannot be opened any more: somebody else was faster, or its time was over before the broker saw it")
	case err != nil:
		return 0, err
	}
	want := a.secretIDPath()
	if path := client.Text(said.Data["creation_path"]); !a.made(path) {
		return 0, a.intercepted("was made by " + path + ", and not by " + want + ": somebody put it there, and it was not opened")
	}
	left := client.Seconds(said.Data["creation_ttl"])
	if made := client.Time(said.Data["creation_time"]); !made.IsZero() {
		left -= time.Since(made)
	}
	return max(left, time.Second), nil
}

// unwrap opens what waits, once, and keeps the secret id in the file of the login. The
// place for it is made before: what is opened and then lost would need another. It
// reports whether there was one.
func (a Auth) unwrap(ctx context.Context, c *client.Client) (opened bool, err error) {
	token, err := a.wrapped()
	if err != nil || token.IsZero() {
		return false, err
	}
	if _, err := a.lookup(ctx, c, token); err != nil {
		return false, err
	}
	place, err := os.CreateTemp(filepath.Dir(a.File), ".secret-id-*") // 0600
	if err != nil {
		return false, protocol.Errorf(protocol.CodeFailedPrecondition, "a wrapped secret id is not opened, because it could not be kept: %w", err)
	}
	defer os.Remove(place.Name()) // where it was not renamed
	defer place.Close()           // a second time where it was kept
	said, err := c.Write(ctx, token, "sys/wrapping/unwrap", map[string]any{})
	switch k := client.KindOf(err); {
	case k == client.Invalid || k == client.Refused || k == client.Absent:
		return false, a.intercepted("was opened by somebody else in this moment")
	case err != nil:
		return false, err
	}
	id, err := secret.New(client.Text(said.Data["secret_id"]))
	if err != nil {
		return false, a.intercepted("holds no secret id")
	}
	_, err = place.WriteString(id.Reveal() + "\n")
	err = errors.Join(err, place.Sync(), place.Close())
	if err == nil {
		err = os.Rename(place.Name(), a.File)
	}
	if err != nil {
		return false, protocol.Errorf(protocol.CodeInternal, "a secret id was opened and could not be kept in %s: %w; carry a new one", a.File, err)
	}
	return true, os.Remove(a.Wrapped)
}

// takeWrapped opens a secret id that waits. One that was intercepted is an alarm: it
// stays in Alarm while the file lies there, and the login goes on with what it has.
func (s *Session) takeWrapped(ctx context.Context) {
	if s.auth.Wrapped == "" {
		return
	}
	opened, err := s.auth.unwrap(ctx, s.client)
	var bad *Intercepted
	switch {
	case err == nil:
		s.alarm.Store(nil)
		if opened {
			s.log.InfoContext(ctx, "a wrapped secret id was opened, and is what the broker logs in with next", "file", s.auth.File)
		}
	case errors.As(err, &bad):
		if was := s.alarm.Swap(bad); was == nil || *was != *bad {
			s.log.ErrorContext(ctx, "ALARM: a wrapped secret id was intercepted", "error", bad, "mend", bad.Mend)
		}
	case ctx.Err() == nil:
		s.log.WarnContext(ctx, "a wrapped secret id waits and was not opened", "error", err)
	}
}

// Alarm is a wrapped secret id that was intercepted; nil: none was.
func (s *Session) Alarm() *Intercepted { return s.alarm.Load() }

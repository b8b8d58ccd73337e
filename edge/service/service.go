// Package service keeps a runner running: it makes `bivouac-edge run` a unit of the
// user's own systemd, which needs no root and runs with the user's rights alone.
//
// It owns one unit file for each state directory, and the link that enables it. It
// guarantees that what it wrote is named, that a unit of another runner is never
// touched, and that Remove leaves nothing behind. It refuses, before anything is
// changed, a machine whose user has no systemd of their own, and says what to do
// instead; and it never changes a unit that somebody else wrote.
//
// Test it with a systemctl of the test's own on PATH: only that program is run.
package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// patience bounds one call of systemctl.
const patience = 30 * time.Second

// mark is the first line of every unit that we wrote.
const mark = "# Written by bivouac-edge join --service; bivouac-edge leave removes it.\n"

// Unit of one runner.
type Unit struct {
	// State is the runner's directory.
	State *state.Dir
	// Program is the bivouac-edge binary, absolute.
	Program string
	// Folder of the user's units; empty: where systemd looks for them.
	Folder string
}

// Name of the unit: plain for the default directory, so that it is easy to type.
func (u Unit) Name() string {
	if u.State.IsDefault() {
		return "bivouac-edge.service"
	}
	return "bivouac-edge-" + strings.TrimPrefix(u.State.Scope(), "bivouac-") + ".service"
}

// File of the unit.
func (u Unit) File() (string, error) {
	folder := u.Folder
	if folder == "" {
		config, err := os.UserConfigDir()
		if err != nil {
			return "", protocol.Errorf(protocol.CodeFailedPrecondition, "there is no place for the unit: %w; set HOME", err)
		}
		folder = filepath.Join(config, "systemd", "user")
	}
	return filepath.Join(folder, u.Name()), nil
}

// Available reports whether the user's systemd can be asked, and else what to do.
func (u Unit) Available(ctx context.Context) error {
	if _, err := exec.LookPath("systemctl"); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"--service needs systemd, which this machine does not have: join without it, and let the service manager that there is keep `%s` running; it must end only that process", u.State.Command("run"))
	}
	if out, err := systemctl(ctx, "show-environment"); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"--service needs a systemd of this user's own, which does not answer (%s): log in as this user, not by su or sudo, or run `sudo loginctl enable-linger %s` and log in again; or join without --service and start `%s` yourself",
			reason(out, err), userName(), u.State.Command("run"))
	}
	return nil
}

// Install writes the unit, starts it now and at every boot, and returns the file.
// It may be repeated.
func (u Unit) Install(ctx context.Context) (file string, err error) {
	if file, err = u.File(); err != nil {
		return "", err
	}
	if err := u.ours(file); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", protocol.Errorf(protocol.CodeFailedPrecondition, "the folder of the user's units cannot be made: %w", err)
	}
	if err := durable.Replace(file, u.text(), 0o600); err != nil {
		return "", protocol.Errorf(protocol.CodeFailedPrecondition, "the unit cannot be written: %w", err)
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", "--now", u.Name()}} {
		if out, err := systemctl(ctx, args...); err != nil {
			return file, protocol.Errorf(protocol.CodeUnavailable, "systemctl --user %s failed: %s; see `systemctl --user status %s`",
				strings.Join(args, " "), reason(out, err), u.Name())
		}
	}
	return file, nil
}

// Remove stops the unit and leaves nothing of it; without one it does nothing. A
// systemd that does not answer does not keep the files.
func (u Unit) Remove(ctx context.Context) (removed string, err error) {
	file, err := u.File()
	if err != nil {
		return "", nil // without a home there is no unit
	}
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err := u.ours(file); err != nil {
		return "", err
	}
	_, stopErr := systemctl(ctx, "disable", "--now", u.Name())
	link := filepath.Join(filepath.Dir(file), "default.target.wants", u.Name())
	for _, name := range []string{link, file} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", protocol.Errorf(protocol.CodeUnavailable, "%s cannot be removed: %w; remove it by hand", name, err)
		}
	}
	if stopErr == nil {
		_, _ = systemctl(ctx, "daemon-reload") // it forgets the unit at the next login otherwise
	}
	return file, nil
}

// ours refuses a file that somebody else wrote.
func (u Unit) ours(file string) error {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !bytes.HasPrefix(b, []byte(mark)) {
		return protocol.Errorf(protocol.CodeAlreadyExists, "%s is there and was not written by bivouac-edge: move it away, or keep it and leave --service out", file)
	}
	return nil
}

// text of the unit. Exit codes 3 and 4 say that the server does not know this
// machine any more: starting again does not help then. Supervisors of turns outlive
// the daemon, so only its own process is ended; the group is theirs to set limits in.
func (u Unit) text() []byte {
	return fmt.Appendf(nil, mark+`[Unit]
Description=Bivouac runner
After=network-online.target

[Service]
ExecStart=%s run --state %s
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=%d %d
KillMode=process
Delegate=yes
# The daemon's own place in its group (systemd 254), so that it can be started again
# while turns of an earlier one still run in theirs.
DelegateSubgroup=bivouac-self

[Install]
WantedBy=default.target
`, quoted(u.Program), quoted(u.State.Path()),
		protocol.CodeUnauthenticated.ExitCode(), protocol.CodePermissionDenied.ExitCode())
}

// quoted is one word of a command line as systemd reads it (systemd.service(5)).
func quoted(word string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`, `$`, `$$`).Replace(word) + `"`
}

func systemctl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "systemctl", append([]string{"--user", "--no-pager"}, args...)...)
	cmd.Env = busEnv()
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// busEnv is what finds the user's systemd, and nothing else of this process's.
func busEnv() []string {
	env := []string{} // not nil: that would be everything
	for _, name := range []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DBUS_SESSION_BUS_ADDRESS"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// reason prefers what systemctl said.
func reason(out string, err error) string {
	if line, _, _ := strings.Cut(out, "\n"); line != "" {
		return line
	}
	return err.Error()
}

func userName() string {
	if name := os.Getenv("USER"); name != "" {
		return name
	}
	return "$USER"
}

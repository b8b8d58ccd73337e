package state

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"bivouac/edge/durable"
	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
)

// Dir is a runner's state directory.
type Dir struct{ path string }

// Enrolment is what join learned. It holds no secret.
type Enrolment struct {
	Server string               `json:"server"` // host:port of the runner listener
	Broker string               `json:"broker"` // host:port, as the server last said
	Name   string               `json:"name"`   // as asked at join; empty: the server knows it
	Runner protocol.RunnerID    `json:"runner_id"`
	Tenant protocol.TenantID    `json:"tenant_id"`
	Owner  protocol.PrincipalID `json:"owner_principal_id"`
}

// Default is where a runner keeps its state when nobody says otherwise.
func Default() string {
	if d := os.Getenv("BIVOUAC_EDGE_STATE"); d != "" {
		return d
	}
	return durable.StateDir("bivouac-edge", "bivouac-edge-state")
}

// At is a directory that need not be there yet.
func At(path string) (*Dir, error) {
	abs, err := filepath.Abs(path)
	return &Dir{path: abs}, err
}

// Create makes the directory, or takes an existing one of this user.
func Create(path string) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the state directory %s cannot be made: %w; name another one with --state", abs, durable.Full(abs, err))
	}
	d := &Dir{path: abs}
	return d, d.private()
}

// Open opens the directory of a runner that has joined.
func Open(path string) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	d := &Dir{path: abs}
	if _, err := os.Stat(d.file("enrolment.json")); errors.Is(err, fs.ErrPermission) {
		return nil, protocol.Errorf(protocol.CodePermissionDenied, "%s is not this user's: %w; run this as the user whose runner it is, whom `ls -ld %s` names", abs, err, abs)
	}
	if !d.Joined() {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition,
			"there is no runner in %s: run `%s` first, or name its directory with --state", abs, d.Command("join URL CODE"))
	}
	return d, d.private()
}

// private closes a directory that others can touch, or refuses it.
func (d *Dir) private() error {
	err := filemode.Secret(d.path)
	if err != nil && os.Chmod(d.path, 0o700) == nil {
		return nil
	}
	return err
}

// Path of the directory, absolute.
func (d *Dir) Path() string { return d.path }

// Command is the text of a bivouac-edge command for this directory, as a person
// types it: --state is named unless it is the default.
func (d *Dir) Command(args string) string {
	text := "bivouac-edge " + args
	if d.IsDefault() {
		return text
	}
	return text + " --state " + shellword.Quote(d.path)
}

// IsDefault reports the directory that is meant when nobody names one.
func (d *Dir) IsDefault() bool {
	def, err := filepath.Abs(Default())
	return err == nil && def == d.path
}

// Scope names what this directory's processes make outside of it, such as
// control groups, so that two runners of one machine never sweep each other's.
func (d *Dir) Scope() string {
	sum := sha256.Sum256([]byte(d.path))
	return "bivouac-" + hex.EncodeToString(sum[:6])
}

func (d *Dir) file(name string) string { return filepath.Join(d.path, name) }

// Policy is the path of edge.hcl.
func (d *Dir) Policy() string { return d.file("edge.hcl") }

// GoodPolicy is the path of the last edge.hcl without mistakes, which stays in force
// while the owner's own file has some.
func (d *Dir) GoodPolicy() string { return d.file("edge.good.hcl") }

// SaveGoodPolicy keeps a policy.
func (d *Dir) SaveGoodPolicy(src []byte) error { return d.write("edge.good.hcl", src, 0o600) }

// PolicyInForce is the file to read for what the owner allows: edge.hcl, or the last
// good one where edge.hcl was there and is gone, which missing says with what brings it
// back. A lost file takes no second key away. Where there never was one it is edge.hcl.
func (d *Dir) PolicyInForce() (path string, missing error) {
	if _, err := os.Lstat(d.Policy()); !errors.Is(err, fs.ErrNotExist) {
		return d.Policy(), nil
	}
	if _, err := os.Lstat(d.GoodPolicy()); errors.Is(err, fs.ErrNotExist) {
		return d.Policy(), nil
	}
	return d.GoodPolicy(), protocol.Errorf(protocol.CodeFailedPrecondition,
		"%s is missing, and this runner had one: the last good one stays in force; bring it back with `%s`", d.Policy(), d.PolicyBack())
}

// PolicyBack is the command that makes edge.hcl of the last good one.
func (d *Dir) PolicyBack() string {
	return "cp " + shellword.Quote(d.GoodPolicy()) + " " + shellword.Quote(d.Policy())
}

// Control is the path of the daemon's control socket.
func (d *Dir) Control() string { return d.file("control.sock") }

// Journal is the directory of the journal of device attempts.
func (d *Dir) Journal() string { return d.file("journal") }

// Joined reports whether an enrolment is stored.
func (d *Dir) Joined() bool {
	_, err := os.Stat(d.file("enrolment.json"))
	return err == nil
}

// HasKey reports whether there is a device key, which a join makes first of all.
func (d *Dir) HasKey() bool {
	_, err := os.Stat(d.file("device.key"))
	return err == nil
}

// Enrolment reads what join stored.
func (d *Dir) Enrolment() (Enrolment, error) {
	var e Enrolment
	b, err := os.ReadFile(d.file("enrolment.json"))
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err != nil {
		return e, protocol.Errorf(protocol.CodeDataLoss, "%s cannot be read: %w; forget this runner with `%s`, then run `%s` with a new code", d.file("enrolment.json"), err, d.Command("leave --force"), d.Command("join URL CODE"))
	}
	return e, nil
}

// SaveEnrolment stores it: from then on the directory is a runner's.
func (d *Dir) SaveEnrolment(e Enrolment) error {
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	return d.write("enrolment.json", append(b, '\n'), 0o600)
}

// Paused reports the owner's switch.
func (d *Dir) Paused() bool {
	_, err := os.Stat(d.file("paused"))
	return !errors.Is(err, fs.ErrNotExist) // what cannot be read counts as paused
}

// SetPaused is durable when it returns.
func (d *Dir) SetPaused(paused bool) error {
	if paused {
		return d.write("paused", nil, 0o600)
	}
	if err := os.Remove(d.file("paused")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return durable.SyncDir(d.path)
}

// Wipe forgets the runner: key, certificates, enrolment, journal and attempts.
// The owner's edge.hcl stays.
func (d *Dir) Wipe() error {
	var errs []error
	// The enrolment goes first: a half-wiped directory is not a runner any more.
	for _, name := range []string{"enrolment.json", "device.key", "runner.crt", "root.crt", "epoch", "clock.json", "edge.good.hcl", "paused", "control.sock", "sandbox.json", "journal", "attempts"} {
		errs = append(errs, os.RemoveAll(d.file(name)))
	}
	return errors.Join(append(errs, durable.Sweep(d.path, 0), durable.SyncDir(d.path))...)
}

func (d *Dir) write(name string, b []byte, mode fs.FileMode) error {
	return durable.Replace(d.file(name), b, mode)
}

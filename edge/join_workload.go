package edge

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// Workload is a workload identity of Nomad, with which a machine enrols that nobody
// sits at. What a code says of the server, a fingerprint says here.
type Workload struct {
	// Fingerprint of the server's root, as bivouac-broker init prints it.
	Fingerprint string
	// File that Nomad keeps the identity in.
	File string
}

// invitation is what a machine enrols by.
type invitation struct {
	fingerprint    string
	code, workload string // one of them
}

// invitation reads what was given here, before anything is sent.
func (p JoinParams) invitation() (invitation, error) {
	if p.Workload == (Workload{}) {
		code, err := identity.ParseCode(identity.CodeJoin, p.Code)
		return invitation{fingerprint: code.Fingerprint, code: code.Reveal()}, err
	}
	fingerprint := strings.ToLower(strings.TrimSpace(p.Workload.Fingerprint))
	if b, err := hex.DecodeString(fingerprint); err != nil || len(b) != 32 {
		return invitation{}, protocol.Errorf(protocol.CodeInvalidArgument, "the fingerprint of the server's root must be 64 hexadecimal digits, as `bivouac-broker init` prints it; %q is none", p.Workload.Fingerprint)
	}
	token, err := readIdentity(p.Workload.File)
	return invitation{fingerprint: fingerprint, workload: token}, err
}

// identityMost bounds the file of an identity; the server takes as much.
const identityMost = 16 << 10

// readIdentity reads the file that Nomad writes. What it says is judged by the server.
func readIdentity(path string) (string, error) {
	const mend = "the task needs an identity block with a name, aud, ttl and file = true, and this must be its nomad_<name>.jwt; see jobs/runner.nomad.hcl"
	f, err := os.Open(path)
	if err != nil {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "the workload identity cannot be read: %w; %s", err, mend)
	}
	defer f.Close() // read only
	b, err := io.ReadAll(io.LimitReader(f, identityMost+1))
	token := strings.TrimSpace(string(b))
	switch {
	case err != nil:
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "the workload identity cannot be read: %w; %s", err, mend)
	case len(b) > identityMost || strings.Count(token, ".") != 2 || strings.ContainsAny(token, " \n\t"):
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "%s holds no workload identity: %s", path, mend)
	}
	return token, nil
}

// Waits between two tries of a machine whose server does not answer yet.
const enrolBase, enrolMost = time.Second, 30 * time.Second

// Enrol makes this machine a runner by its workload identity, unless it is one already: a
// key that was enrolled is what the machine is known by from then on. While the server
// does not answer it tries again; the file is read anew each time.
func Enrol(ctx context.Context, p JoinParams, log *slog.Logger) error {
	address, err := serverAddress(p.Server)
	if err != nil {
		return err
	}
	if d, err := state.At(p.State); err != nil {
		return err
	} else if d.Joined() {
		return sameServer(d, address)
	}
	again := link.Backoff{Base: enrolBase, Max: enrolMost}
	for {
		e, err := Join(ctx, p)
		if err == nil {
			log.InfoContext(ctx, "enrolled by the workload identity", "runner", e.Runner, "server", e.Server)
			return nil
		}
		if code := protocol.CodeOf(err); code != protocol.CodeUnavailable && code != protocol.CodeDeadlineExceeded {
			return err
		}
		wait := again.Next()
		log.WarnContext(ctx, "not enrolled yet", "error", err, "again_in", wait.Round(time.Millisecond))
		if !op.Sleep(ctx, wait) {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// sameServer refuses a directory of a runner of another server.
func sameServer(d *state.Dir, address string) error {
	e, err := d.Enrolment()
	if err != nil || e.Server == address {
		return err
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition,
		"%s is the runner %s of %s already, and --enrol-server names %s: run `%s` to leave the other one, or name another directory with --state",
		d.Path(), strings.TrimSpace(fmt.Sprintf("%s %s", e.Name, e.Runner)), e.Server, address, d.Command("leave"))
}

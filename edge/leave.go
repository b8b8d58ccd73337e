package edge

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"os"
	"syscall"
	"time"

	"bivouac/edge/link"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/runnerv1/runnerv1connect"
	"bivouac/edge/sandbox"
	"bivouac/edge/state"
)

// LeaveParams of Leave.
type LeaveParams struct {
	State       *state.Dir
	Supervisors Spawner
	Network     link.Network
	// Sandbox, if any: nobody comes back who would sweep.
	Sandbox sandbox.Backend
	// Force forgets the runner here even when the server cannot be told.
	Force bool
}

// Left is what became of a leaving.
type Left struct {
	// Name of the runner at its server, or its id.
	Name string `json:"name,omitempty"`
	// Untold is why the server was not told: it still lists the runner.
	Untold string `json:"untold,omitempty"`
}

// Leave removes this runner from its server and wipes its state; edge.hcl stays. No
// process of the runner is left when it wipes: what cannot be ended keeps the state,
// so that the next command still finds it.
func Leave(ctx context.Context, p LeaveParams) (Left, error) {
	e, err := p.State.Enrolment()
	if err != nil && !p.Force {
		return Left{}, err
	}
	left, err := tellLeaving(ctx, p)
	if err != nil && !p.Force && !p.State.HasKey() {
		return left, protocol.Errorf(protocol.CodeFailedPrecondition, "the server cannot be told, since the device key of %s is gone: forget the runner on this machine with `%s`, and take it out at the server: `bivouac edge revoke %s`", p.State.Path(), p.State.Command("leave --force"), cmp.Or(e.Name, e.Runner.String()))
	}
	if err != nil && !p.Force {
		return left, protocol.Errorf(protocol.CodeOf(err), "the server was not told: %w; try again, or forget the runner on this machine only: `%s`", err, p.State.Command("leave --force"))
	}
	if err != nil {
		left.Untold = err.Error()
	}
	left.Name = cmp.Or(e.Name, e.Runner.String())
	release, err := soleHolder(ctx, p.State, p.Force)
	if err != nil {
		return left, err
	}
	defer release()
	err = errors.Join(endSupervisors(ctx, p.State, p.Supervisors, "the owner removed this machine from its server"),
		endTurns(ctx, p.State, p.Supervisors, nil, func(state.Attempt) bool { return false })) // they would keep a result that nobody takes
	if err != nil {
		return left, protocol.Errorf(protocol.CodeUnavailable, "a turn of this machine could not be ended, and nothing was wiped: %w; try `%s` again", err, p.State.Command("leave --force"))
	}
	return left, errors.Join(sweepAll(ctx, p.Sandbox, nil), p.State.Wipe())
}

// tellLeaving lets the daemon tell the server and end, or does it without one. A
// daemon that does not answer in its time is none.
func tellLeaving(ctx context.Context, p LeaveParams) (left Left, err error) {
	limit, cancel := context.WithTimeout(ctx, 2*callTimeout+2*stopTimeout)
	defer cancel()
	path := "/leave"
	if p.Force {
		path += "?force=yes"
	}
	if err = exchange(limit, p.State, http.MethodPost, path, nil, &left); errors.Is(err, errNotRunning) {
		err = leaveAlone(ctx, p)
	}
	return left, err
}

// soleHolder waits until the daemon that just left is gone and takes its lock, so that
// none starts meanwhile. With force a daemon that stays is ended: as a service manager
// does it first, and then for good. One that cannot be ended is named.
func soleHolder(ctx context.Context, dir *state.Dir, force bool) (release func(), err error) {
	signals := []os.Signal{nil}
	if force {
		signals = append(signals, syscall.SIGTERM, os.Kill)
	}
	for _, signal := range signals {
		if pid, ok := dir.Holder(); ok && signal != nil && pid != os.Getpid() {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Signal(signal) // the lock says whether it ended
			}
		}
		patience := stopTimeout
		switch {
		case force && signal == nil:
			patience = time.Second // one that was told ends at once
		case force:
			patience = stopTimeout / 2
		}
		if release, err = takeLock(ctx, dir, patience); err == nil || ctx.Err() != nil {
			return release, err
		}
	}
	return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "%w; it did not end, and nothing was wiped: end that process by hand (`kill`), then run `%s`", err, dir.Command("leave --force"))
}

// takeLock tries for as long as a daemon may take to end.
func takeLock(ctx context.Context, dir *state.Dir, patience time.Duration) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if release, err = dir.Lock(); err == nil || !op.Sleep(ctx, 20*time.Millisecond) {
			return release, err
		}
	}
}

// Forget wipes what a join that failed left in a directory that is no runner's. It
// reports whether there was something; a runner is left alone.
func Forget(dir *state.Dir) (wiped bool, err error) {
	if dir.Joined() || !dir.HasKey() {
		return false, nil
	}
	release, err := dir.Lock()
	if err != nil {
		return false, err // a join is under way
	}
	defer release()
	return true, dir.Wipe()
}

// leaveAlone tells the server without a daemon.
func leaveAlone(ctx context.Context, p LeaveParams) error {
	e, err := p.State.Enrolment()
	if err != nil {
		return err
	}
	client, err := dialler(p.State, e.Server, p.Network)
	if err != nil {
		return err
	}
	defer client.Close()
	rpc := runnerv1connect.NewRunnerServiceClient(client, client.URL())
	_, err = call(ctx, rpc.Leave, &runnerv1.LeaveRequest{})
	if recoverable(p.State, err) { // away for longer than its certificate lived
		if _, err = recoverRunner(ctx, p.State, e.Server, p.Network); err == nil {
			client.Drop()
			_, err = call(ctx, rpc.Leave, &runnerv1.LeaveRequest{})
		}
	}
	if err != nil && !forgotten(err) {
		return err
	}
	return nil
}

package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/edge/state"
	"bivouac/edge/supervise/protocol/supervisev1"
)

// errNotRunning means that no daemon answers on the state directory.
var errNotRunning = protocol.Errorf(protocol.CodeFailedPrecondition, "bivouac-edge does not run here")

// ask sends one command to the running daemon.
func ask(ctx context.Context, dir *state.Dir, method, path string) (out Status, err error) {
	err = exchange(ctx, dir, method, path, nil, &out)
	return out, err
}

// exchange is one request to the running daemon and its answer.
func exchange(ctx context.Context, dir *state.Dir, method, path string, in, out any) error {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "unix", dir.Control())
			if err != nil {
				return nil, errNotRunning
			}
			return c, nil
		},
	}}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://bivouac-edge"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if errors.Is(err, errNotRunning) {
		return errNotRunning
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeUnavailable, "bivouac-edge does not answer: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var no controlError
		if err := json.NewDecoder(resp.Body).Decode(&no); err != nil {
			return protocol.Errorf(protocol.CodeInternal, "bivouac-edge answered %s", resp.Status)
		}
		return &protocol.Error{Code: no.Code, Message: no.Message}
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// startIt adds to a daemon's silence how it is ended.
func startIt(dir *state.Dir, err error) error {
	if errors.Is(err, errNotRunning) {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%w: start it with `%s`", errNotRunning, dir.Command("run"))
	}
	return err
}

// AskQuestions asks the running daemon what waits for its owner.
func AskQuestions(ctx context.Context, dir *state.Dir) (out []Question, err error) {
	err = exchange(ctx, dir, http.MethodGet, "/approvals", nil, &out)
	return out, startIt(dir, err)
}

// Decide gives the owner's decision to the running daemon, which keeps it before it
// answers.
func Decide(ctx context.Context, dir *state.Dir, c Decision) (out Question, err error) {
	err = exchange(ctx, dir, http.MethodPost, "/decide", c, &out)
	return out, startIt(dir, err)
}

// AskStatus asks the running daemon of a state directory.
func AskStatus(ctx context.Context, dir *state.Dir) (Status, error) {
	s, err := ask(ctx, dir, http.MethodGet, "/status")
	return s, startIt(dir, err)
}

// Pause is the owner's switch: durable at once, without a network, and it
// returns when no sandbox runs any more. Without a daemon it ends the
// supervisors itself.
func Pause(ctx context.Context, dir *state.Dir, supervisors Spawner) (running bool, err error) {
	if err := dir.SetPaused(true); err != nil {
		return false, protocol.Errorf(protocol.CodeUnavailable, "the switch cannot be stored: %w", err)
	}
	_, err = ask(ctx, dir, http.MethodPost, "/pause")
	if !errors.Is(err, errNotRunning) {
		return true, err
	}
	return false, endSupervisors(ctx, dir, supervisors, "the owner has paused this machine")
}

// Probe makes the running daemon look for QUIC at once, and returns what came of it.
func Probe(ctx context.Context, dir *state.Dir) (Status, error) {
	s, err := ask(ctx, dir, http.MethodPost, "/probe")
	return s, startIt(dir, err)
}

// Resume takes the switch back.
func Resume(ctx context.Context, dir *state.Dir) (running bool, err error) {
	if err := dir.SetPaused(false); err != nil {
		return false, protocol.Errorf(protocol.CodeUnavailable, "the switch cannot be stored: %w", err)
	}
	_, err = ask(ctx, dir, http.MethodPost, "/resume")
	if errors.Is(err, errNotRunning) {
		return false, nil
	}
	return true, err
}

// EndTurns kills what a daemon that has stopped left running, with its sandboxes.
// It cancels nothing: the attempts are interrupted, as by a power failure, and the
// journals say the rest at the next start. What another scheduler started is its to end,
// and goes on until the next daemon, or the end of its lease.
func EndTurns(ctx context.Context, dir *state.Dir, supervisors Spawner, sandboxes sandbox.Backend) error {
	return endTurns(ctx, dir, supervisors, sandboxes, awaits)
}

func endTurns(ctx context.Context, dir *state.Dir, supervisors Spawner, sandboxes sandbox.Backend, spare func(state.Attempt) bool) error {
	dirs, err := dir.Attempts()
	if err != nil || supervisors == nil {
		return err
	}
	var failed []error
	var spared []string
	for _, a := range dirs {
		if spare(a) {
			spared = append(spared, a.ID.String())
			continue
		}
		limit, cancel := context.WithTimeout(ctx, stopTimeout)
		failed = append(failed, supervisors.Kill(limit, a))
		cancel()
	}
	return errors.Join(append(failed, sweepAll(ctx, sandboxes, spared))...)
}

// sweepAll removes what killed supervisors left, and what it was made in. INV-18.
func sweepAll(ctx context.Context, b sandbox.Backend, keep []string) error {
	if b == nil {
		return nil
	}
	_, err := b.Sweep(ctx, keep)
	return errors.Join(err, b.Tidy(ctx))
}

// endSupervisors stops what runs without a daemon.
func endSupervisors(ctx context.Context, dir *state.Dir, s Spawner, reason string) error {
	dirs, err := dir.Attempts()
	if err != nil || s == nil {
		return err
	}
	var failed []error
	for _, a := range dirs {
		limit, cancel := context.WithTimeout(ctx, stopTimeout)
		if _, err := supervisorOf(s, a).Stop(limit, &supervisev1.StopRequest{Reason: reason}); err != nil {
			failed = append(failed, s.Kill(ctx, a))
		}
		cancel()
	}
	return errors.Join(failed...)
}

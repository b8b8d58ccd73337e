//go:build linux

package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"bivouac/edge"
	"bivouac/edge/state"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// Edge is one runner: its state directory and its daemon.
type Edge struct {
	Name   string
	State  string
	Daemon *Process

	stack *Stack
	place Place
	owner *client.Client
}

// EdgeConfig says what a machine's owner allows.
type EdgeConfig struct {
	Name       string
	Folders    []string // name=/path[:rw]
	Toolchains []string // name=/path
	Place      Place
	Owner      *client.Client // who invites it; nil: the first principal
	Worker     string         // the worker that its owner installed; empty: the product's
}

// AddEdge joins a machine with a code, runs it and waits until it is connected.
func (s *Stack) AddEdge(ctx context.Context, cfg EdgeConfig) (*Edge, error) {
	e, err := s.Join(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := e.Daemon.Start(s.fault("edge")...); err != nil {
		return nil, err
	}
	return e, e.Connected(ctx)
}

// Join enrols a machine with the command that an invitation shows.
func (s *Stack) Join(ctx context.Context, cfg EdgeConfig) (*Edge, error) {
	owner := cfg.Owner
	if owner == nil {
		owner = s.API
	}
	invite, err := owner.Runners.CreateJoinCode(ctx, &apiv1.CreateJoinCodeRequest{Name: cfg.Name})
	if err != nil {
		return nil, err
	}
	var more []string
	if cfg.Worker != "" {
		more = append(more, "--worker", cfg.Worker)
	}
	e, err := s.edgeAt(cfg.Name, s.Path("edge-"+cfg.Name), cfg.Place, more...)
	if err != nil {
		return nil, err
	}
	e.owner = owner
	words := strings.Fields(invite.GetCommand())
	args := append(words[1:], "--name", cfg.Name, "--state", e.State)
	for _, f := range cfg.Folders {
		args = append(args, "--allow-folder", f)
	}
	for _, t := range cfg.Toolchains {
		args = append(args, "--toolchain", t)
	}
	if out, err := s.run(ctx, e.place, "", words[0], args...); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	s.Edges = append(s.Edges, e)
	return e, nil
}

func (s *Stack) edgeAt(name, dir string, place Place, flags ...string) (*Edge, error) {
	e := &Edge{Name: name, State: dir, stack: s, place: place.withDefaults()}
	more, err := s.watchFlags("edge-"+name, false)
	e.Daemon = s.process("edge-"+name, e.place, "bivouac-edge", append([]string{"run", "--state", dir}, append(flags, more...)...)...)
	return e, err
}

// Restored is the same machine as it comes back from a copy of its disk that was
// made before it claimed anything: key, enrolment and policy are there, claims
// and journals are not. It does not run yet.
func (e *Edge) Restored(name string) (*Edge, error) {
	to, err := e.stack.edgeAt(name, e.stack.Path("edge-"+name), e.place)
	if err != nil {
		return nil, err
	}
	to.owner = e.owner
	if err := os.Mkdir(to.State, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(e.State)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue // claims and journals are in folders
		}
		b, err := os.ReadFile(filepath.Join(e.State, entry.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(to.State, entry.Name()), b, 0o600)
		}
		if err != nil {
			return nil, err
		}
	}
	e.stack.Edges = append(e.stack.Edges, to)
	return to, nil
}

// Status is what the daemon says of itself to its owner.
func (e *Edge) Status(ctx context.Context) (edge.Status, error) { return e.ask(ctx, "status") }

// Probe makes the daemon look for QUIC, as its owner does, and returns its status.
func (e *Edge) Probe(ctx context.Context) (edge.Status, error) { return e.ask(ctx, "probe") }

func (e *Edge) ask(ctx context.Context, command string) (edge.Status, error) {
	out, err := e.stack.run(ctx, e.place, "", "bivouac-edge", command, "--state", e.State, "--json")
	if err != nil {
		return edge.Status{}, err
	}
	var st edge.Status
	return st, json.Unmarshal([]byte(out), &st)
}

// Connected waits until the daemon has its link and the server knows what the
// machine offers.
func (e *Edge) Connected(ctx context.Context) error {
	dir, err := state.Open(e.State)
	if err != nil {
		return err
	}
	enrolled, err := dir.Enrolment()
	if err != nil {
		return err
	}
	return e.stack.until(ctx, "runner "+e.Name+" is connected", e.Daemon, func(ctx context.Context) error {
		list, err := e.owner.Runners.ListRunners(ctx, &apiv1.ListRunnersRequest{})
		if err != nil {
			return err
		}
		for _, r := range list.GetRunners() {
			if r.GetId() == enrolled.Runner.String() && r.GetConnected() && (r.GetBoundary() != "" || r.GetSandboxProblem() != "") {
				return nil
			}
		}
		return errors.New("not yet")
	})
}

// Claims are the attempts of whole turns that this machine has journalled a claim
// of and not yet finished.
func (e *Edge) Claims() ([]string, error) {
	names, err := filepath.Glob(filepath.Join(e.State, "attempts", "*", "claim"))
	for i, name := range names {
		names[i] = filepath.Base(filepath.Dir(name))
	}
	return names, err
}

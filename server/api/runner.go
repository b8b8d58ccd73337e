package api

import (
	"bivouac/edge/finding"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/engine"
	"bivouac/server/execution"
	"bivouac/server/placement"
	"bivouac/server/store"
)

type runners struct{ Config }

// CreateJoinCode makes a single-use code; only its hash stays here.
func (s runners) CreateJoinCode(ctx context.Context, r *apiv1.CreateJoinCodeRequest) (*apiv1.CreateJoinCodeResponse, error) {
	root, err := s.Root()
	if err != nil {
		return nil, err
	}
	code, err := identity.NewCode(identity.CodeJoin, identity.Fingerprint(root), rand.Reader)
	if err != nil {
		return nil, err
	}
	kept, err := s.Engine.CreateJoinCode(ctx, callerOf(ctx), engine.NewJoinCode{Hash: code.Hash(), Name: r.GetName(),
		Actions: r.GetActions(), TTL: time.Duration(r.GetTtlSeconds()) * time.Second})
	if err != nil {
		return nil, err
	}
	return &apiv1.CreateJoinCodeResponse{
		Code: code.Reveal(), ExpiresAt: at(kept.ExpiresAt),
		Command: "bivouac-edge join https://" + s.RunnerAddress + " " + code.Reveal(),
		Warning: s.farWarning(),
	}, nil
}

// farWarning says why another machine cannot join at the address that is told.
func (s runners) farWarning() string {
	what, _ := finding.Told(s.RunnerAddress, s.BrokerAddress)
	if what == "" {
		return ""
	}
	return what + "; for other machines start the server with addresses that they reach: " + finding.ServeOthers
}

func (s runners) ListRunners(ctx context.Context, _ *apiv1.ListRunnersRequest) (*apiv1.ListRunnersResponse, error) {
	out := &apiv1.ListRunnersResponse{}
	err := s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		out.Runners = nil
		list, err := tx.ActiveRunners()
		if err != nil {
			return err
		}
		names, err := principalNames(tx)
		if err != nil {
			return err
		}
		for _, r := range list {
			one, err := wholeRunner(tx, r, names)
			if err != nil {
				return err
			}
			out.Runners = append(out.Runners, one)
		}
		return nil
	})
	return out, err
}

// wholeRunner is a runner with its connection, its load and its bindings.
func wholeRunner(tx *store.Tx, r execution.Runner, names map[protocol.PrincipalID]string) (*apiv1.Runner, error) {
	f := r.Facts
	out := &apiv1.Runner{
		Id: r.ID.String(), Name: r.Name, State: string(r.State), Paused: f.Paused, Os: f.OS, Arch: f.Arch,
		Version: f.Version, Slots: int32(f.Slots), Boundary: f.Boundary, Limits: f.Limits, Actions: f.Actions,
		LastSeenAt: at(r.LastSeenAt), EnrolledAt: at(r.EnrolledAt), Owner: r.Owner.String(), SandboxProblem: f.SandboxProblem,
		Host: f.Host, Problem: problemOf(f), RefusesEgress: f.RefusesEgress, SecondKeys: f.SecondKeys,
	}
	if name := names[r.Owner]; name != "" {
		out.Owner = name
	}
	conn, err := tx.Connection(r.ID)
	switch {
	case err == nil:
		out.Connected, out.Transport = conn.ExpiresAt.After(tx.Now), conn.Transport
	case !isNotFound(err):
		return nil, err
	}
	busy, err := tx.AttemptsOfRunner(r.ID)
	if err != nil {
		return nil, err
	}
	out.SlotsBusy = int32(len(busy))
	bindings, err := tx.BindingsOfRunner(r.ID)
	if err != nil {
		return nil, err
	}
	for _, b := range bindings {
		out.Bindings = append(out.Bindings, bindingOut(b, names[b.Principal]))
	}
	return out, nil
}

// problemOf tells the owner of a machine's copy, of workers that get no turns, and of
// a machine from which the broker was not reached.
func problemOf(f execution.Facts) string {
	var all []string
	for _, r := range placement.Outdated(f) {
		all = append(all, r.Text+": "+r.Remedy)
	}
	if !f.NoBroker.IsZero() {
		all = append(all, "its model calls have not reached the broker since "+f.NoBroker.UTC().Format(time.RFC3339)+": bivouac-edge doctor, there, says what is in the way; the next call that reaches it takes this away")
	}
	if !f.Copy.At.IsZero() {
		all = append(all, copyOf(f))
	}
	return strings.Join(all, "; ")
}

func copyOf(f execution.Facts) string {
	return fmt.Sprintf("a second machine with its key (%s) was refused at %s: one state directory is a copy of the other; on the one that should not be, run bivouac-edge leave --force",
		cmp.Or(f.Copy.Host, "unnamed"), f.Copy.At.UTC().Format(time.RFC3339))
}

func (s runners) RevokeRunner(ctx context.Context, r *apiv1.RevokeRunnerRequest) (*apiv1.RevokeRunnerResponse, error) {
	id, err := protocol.ParseID[protocol.RunnerKind](r.GetRunnerId())
	if err != nil {
		return nil, err
	}
	rn, err := s.Engine.RevokeRunner(ctx, callerOf(ctx), id, "revoked by "+loginOf(ctx).principal.Name)
	if err != nil {
		return nil, err
	}
	if r.GetFreeNode() {
		if err := s.Engine.FreeNode(ctx, callerOf(ctx), id); err != nil {
			return nil, err
		}
	}
	out := &apiv1.RevokeRunnerResponse{}
	err = s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		names, err := principalNames(tx)
		if err != nil {
			return err
		}
		out.Runner, err = wholeRunner(tx, rn, names)
		return err
	})
	return out, err
}

// PutBinding lets a principal use a machine.
func (s runners) PutBinding(ctx context.Context, r *apiv1.PutBindingRequest) (*apiv1.PutBindingResponse, error) {
	id, err := protocol.ParseID[protocol.RunnerKind](r.GetRunnerId())
	if err != nil {
		return nil, err
	}
	b, p, err := s.Engine.PutBinding(ctx, callerOf(ctx), engine.NewBinding{Runner: id, Principal: r.GetPrincipalId(), Actions: r.GetActions()})
	if err != nil {
		return nil, err
	}
	return &apiv1.PutBindingResponse{Binding: bindingOut(b, p.Name)}, nil
}

func (s runners) DeleteBinding(ctx context.Context, r *apiv1.DeleteBindingRequest) (*apiv1.DeleteBindingResponse, error) {
	id, err := protocol.ParseID[protocol.BindingKind](r.GetBindingId())
	if err != nil {
		return nil, err
	}
	return &apiv1.DeleteBindingResponse{}, s.Engine.DeleteBinding(ctx, callerOf(ctx), id)
}

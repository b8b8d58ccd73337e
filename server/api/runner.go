package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/execution"
	"bivouac/server/store"
)

// Life of a join code: minutes.
const (
	defaultJoinTTL = 10 * time.Minute
	maxJoinTTL     = time.Hour
)

// bindable are what a binding may name: the fixed device actions, and "turn" for
// whole turns in a sandbox.
var bindable = []string{"files.list", "files.read", "files.write", "turn"}

func checkActions(actions []string) error {
	for _, a := range actions {
		if !slices.Contains(bindable, a) {
			return protocol.Errorf(protocol.CodeInvalidArgument, "%q is no action of a machine: choose from %v", a, bindable)
		}
	}
	return nil
}

type runners struct{ Config }

// CreateJoinCode makes a single-use code; only its hash stays here.
func (s runners) CreateJoinCode(ctx context.Context, r *apiv1.CreateJoinCodeRequest) (*apiv1.CreateJoinCodeResponse, error) {
	ttl := time.Duration(r.GetTtlSeconds()) * time.Second
	if ttl == 0 {
		ttl = defaultJoinTTL
	}
	if ttl < 0 || ttl > maxJoinTTL {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "a join code lives at most %s: give a shorter --ttl", maxJoinTTL)
	}
	if err := checkActions(r.GetActions()); err != nil {
		return nil, err
	}
	if r.GetName() != "" && !principalName.MatchString(r.GetName()) {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "a machine's name has 1 to 63 lower-case letters, digits and . _ @ -; %q is none", r.GetName())
	}
	root, err := s.Root()
	if err != nil {
		return nil, err
	}
	code, err := identity.NewCode(identity.CodeJoin, identity.Fingerprint(root), rand.Reader)
	if err != nil {
		return nil, err
	}
	l := loginOf(ctx)
	var expires time.Time
	err = s.Store.Update(ctx, l.caller(), func(tx *store.Tx) error {
		expires = tx.Now.Add(ttl)
		return tx.InsertJoinCode(execution.JoinCode{
			Hash: code.Hash(), Tenant: l.tenant.ID, Principal: l.principal.ID, Name: r.GetName(),
			Actions: r.GetActions(), CreatedAt: tx.Now, ExpiresAt: expires,
		})
	})
	if err != nil {
		return nil, err
	}
	return &apiv1.CreateJoinCodeResponse{
		Code: code.Reveal(), ExpiresAt: at(expires),
		Command: "bivouac-edge join https://" + s.RunnerAddress + " " + code.Reveal(),
	}, nil
}

func (s runners) ListRunners(ctx context.Context, _ *apiv1.ListRunnersRequest) (*apiv1.ListRunnersResponse, error) {
	out := &apiv1.ListRunnersResponse{}
	err := s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		out.Runners = nil
		list, err := tx.Runners()
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
		Host: f.Host, Problem: problemOf(f),
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

// problemOf tells the owner of a machine's copy.
func problemOf(f execution.Facts) string {
	if f.Copy.At.IsZero() {
		return ""
	}
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

// PutBinding lets a principal use a machine. Its owner may bind; who may be
// bound is who the owner can see, and another tenant's cannot be seen. INV-9.
func (s runners) PutBinding(ctx context.Context, r *apiv1.PutBindingRequest) (*apiv1.PutBindingResponse, error) {
	if err := checkActions(r.GetActions()); err != nil {
		return nil, err
	}
	if len(r.GetActions()) == 0 {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "a binding names at least one action of %v: give --action", bindable)
	}
	id, err := protocol.ParseID[protocol.RunnerKind](r.GetRunnerId())
	if err != nil {
		return nil, err
	}
	l := loginOf(ctx)
	fresh := protocol.NewID[protocol.BindingKind](time.Now(), rand.Reader)
	out := &apiv1.PutBindingResponse{}
	err = s.Store.Update(ctx, l.caller(), func(tx *store.Tx) error {
		rn, err := tx.Runner(id)
		if err != nil {
			return err
		}
		if rn.Owner != l.principal.ID && !l.principal.Admin {
			return protocol.Errorf(protocol.CodePermissionDenied, "%s belongs to somebody else: its owner or an admin may bind it", rn.Name)
		}
		p, err := tx.Principal(protocol.PrincipalID(r.GetPrincipalId()))
		if isNotFound(err) {
			p, err = tx.PrincipalByName(l.tenant.ID, r.GetPrincipalId())
		}
		if err != nil {
			return err
		}
		b, err := tx.PutBinding(execution.Binding{
			ID: fresh, Tenant: l.tenant.ID, Principal: p.ID, Runner: id, Actions: r.GetActions(), CreatedAt: tx.Now,
		})
		out.Binding = bindingOut(b, p.Name)
		return err
	})
	return out, err
}

func (s runners) DeleteBinding(ctx context.Context, r *apiv1.DeleteBindingRequest) (*apiv1.DeleteBindingResponse, error) {
	id, err := protocol.ParseID[protocol.BindingKind](r.GetBindingId())
	if err != nil {
		return nil, err
	}
	err = s.Store.Update(ctx, callerOf(ctx), func(tx *store.Tx) error { return tx.RemoveBinding(id) })
	return &apiv1.DeleteBindingResponse{}, err
}

package api

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/engine"
	"bivouac/server/policy"
	"bivouac/server/store"
)

type grants struct{ Config }

func (s grants) CreateGrant(ctx context.Context, r *apiv1.CreateGrantRequest) (*apiv1.CreateGrantResponse, error) {
	g, err := s.Engine.CreateGrant(ctx, callerOf(ctx), engine.NewGrant{Agent: r.GetAgent(), Credentials: r.GetCredentials()})
	if err != nil {
		return nil, err
	}
	return &apiv1.CreateGrantResponse{Grant: grantOut(g, loginOf(ctx).principal.Name)}, nil
}

func (s grants) ListGrants(ctx context.Context, r *apiv1.ListGrantsRequest) (*apiv1.ListGrantsResponse, error) {
	var (
		list  []policy.Grant
		names map[protocol.PrincipalID]string
	)
	err := s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) (err error) {
		if list, err = tx.Grants(r.GetIncludeRevoked()); err != nil {
			return err
		}
		names, err = principalNames(tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := &apiv1.ListGrantsResponse{}
	for _, g := range list {
		out.Grants = append(out.Grants, grantOut(g, names[g.Principal]))
	}
	return out, nil
}

func (s grants) GetGrant(ctx context.Context, r *apiv1.GetGrantRequest) (*apiv1.GetGrantResponse, error) {
	id, err := protocol.ParseID[protocol.GrantKind](r.GetGrantId())
	if err != nil {
		return nil, err
	}
	reach, err := s.Engine.GrantReach(ctx, callerOf(ctx), id)
	if err != nil {
		return nil, err
	}
	out := &apiv1.GetGrantResponse{Machines: reach.Machines, Sessions: int32(reach.Sessions), Running: int32(reach.Running), Receipt: reach.Grant.Receipt,
		RotationReceipt: reach.Grant.RotationReceipt, Proof: reach.Grant.Proof}
	for _, c := range reach.Credentials {
		out.Credentials = append(out.Credentials, &apiv1.CredentialReach{Name: c.Name, Tools: c.Tools, Destinations: c.Destinations})
	}
	err = s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		names, err := principalNames(tx)
		out.Grant = grantOut(reach.Grant, names[reach.Grant.Principal])
		return err
	})
	return out, err
}

func (s grants) RevokeGrant(ctx context.Context, r *apiv1.RevokeGrantRequest) (*apiv1.RevokeGrantResponse, error) {
	id, err := protocol.ParseID[protocol.GrantKind](r.GetGrantId())
	if err != nil {
		return nil, err
	}
	rev, err := s.Engine.RevokeGrant(ctx, callerOf(ctx), id, r.GetReason())
	if err != nil {
		return nil, err
	}
	out := &apiv1.RevokeGrantResponse{Receipt: rev.Receipt, AlreadyRevoked: rev.Before,
		Ended: &apiv1.Ended{Sessions: rev.Ended.Sessions, Turns: rev.Ended.Turns, Attempts: rev.Ended.Attempts}}
	err = s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		names, err := principalNames(tx)
		out.Grant = grantOut(rev.Grant, names[rev.Grant.Principal])
		return err
	})
	for _, l := range rev.Layers {
		out.Layers = append(out.Layers, &apiv1.RevocationLayer{
			Name: l.Name, Probe: l.Probe, Gone: l.Gone, Detail: l.Detail, TookUs: l.Took.Microseconds(),
		})
	}
	return out, err
}

func (s grants) RotateGrant(ctx context.Context, r *apiv1.RotateGrantRequest) (*apiv1.RotateGrantResponse, error) {
	id, err := protocol.ParseID[protocol.GrantKind](r.GetGrantId())
	if err != nil {
		return nil, err
	}
	done, err := s.Engine.RotateGrant(ctx, callerOf(ctx), id)
	if err != nil {
		return nil, err
	}
	out := &apiv1.RotateGrantResponse{Receipt: done.Receipt, Sessions: done.Sessions}
	err = s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		names, err := principalNames(tx)
		out.Grant = grantOut(done.Grant, names[done.Grant.Principal])
		return err
	})
	return out, err
}

// principalNames of the principals that the caller may see.
func principalNames(tx *store.Tx) (map[protocol.PrincipalID]string, error) {
	list, err := tx.Principals()
	if err != nil {
		return nil, err
	}
	names := make(map[protocol.PrincipalID]string, len(list))
	for _, p := range list {
		names[p.ID] = p.Name
	}
	return names, nil
}

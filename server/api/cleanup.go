package api

import (
	"context"

	"bivouac/server/api/apiv1"
	"bivouac/server/store"
)

// ListCleanups shows the tenant's admins what has ended and is not known to be
// gone. INV-18.
func (s runners) ListCleanups(ctx context.Context, r *apiv1.ListCleanupsRequest) (*apiv1.ListCleanupsResponse, error) {
	if err := requireAdmin(ctx, "see what is not cleaned up"); err != nil {
		return nil, err
	}
	limit, cursor := pageOf(r.GetPage())
	out := &apiv1.ListCleanupsResponse{}
	err := s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		page, next, err := tx.Cleanups(limit, cursor)
		if err != nil {
			return err
		}
		out.Cleanups, out.NextCursor = nil, next
		for _, c := range page {
			out.Cleanups = append(out.Cleanups, &apiv1.Cleanup{
				Id: c.ID.String(), Kind: c.Kind, Subject: c.Subject, Since: at(c.CreatedAt),
				Tries: int32(c.Tries), NextAt: at(c.NextAt), Evidence: c.Evidence,
			})
		}
		return nil
	})
	return out, err
}

package api

import (
	"context"

	"bivouac/server/api/apiv1"
)

// ListQuotas shows a principal the bounds that it runs into. INV-9.
func (s principals) ListQuotas(ctx context.Context, r *apiv1.ListQuotasRequest) (*apiv1.ListQuotasResponse, error) {
	uses, err := s.Engine.QuotasOf(ctx, callerOf(ctx), r.GetAgent())
	if err != nil {
		return nil, err
	}
	out := &apiv1.ListQuotasResponse{}
	for _, u := range uses {
		out.Quotas = append(out.Quotas, &apiv1.Quota{
			Scope: u.Scope, Name: u.Name,
			ActiveTurns: int32(u.Consumed.Active), MaxActiveTurns: int32(u.Quota.MaxActiveTurns),
			QueuedTurns: int32(u.Consumed.Queued), MaxQueuedTurns: int32(u.Quota.MaxQueuedTurns),
			TurnsLastMinute: int32(u.Consumed.LastMinute), MaxTurnsPerMinute: int32(u.Quota.MaxTurnsPerMinute),
			ActiveActions: int32(u.Consumed.ActiveActions), MaxActiveActions: int32(u.Quota.MaxActiveActions),
			TokensToday: u.Consumed.TokensToday, MaxTokensPerDay: u.Quota.MaxTokensPerDay,
			CostTodayMicroUsd: u.Consumed.CostTodayMicroUSD, MaxCostPerDayMicroUsd: u.Quota.MaxCostPerDayMicroUSD,
		})
	}
	return out, nil
}

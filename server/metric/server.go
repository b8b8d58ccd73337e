package metric

import (
	"cmp"
	"context"
	"slices"
	"time"

	"bivouac/edge/metric"
	"bivouac/edge/protocol"
	"bivouac/server/store"
)

// Buckets of waits, in seconds.
var (
	short = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}
	long  = []float64{.1, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600}
)

// ok is the code of what succeeded.
const ok = "ok"

// codes are the values of a label that is an error code.
func codes() []string {
	out := []string{ok}
	for c := range protocol.Codes {
		out = append(out, string(c))
	}
	slices.Sort(out)
	return out
}

// Server counts for a server: it is an engine.Meter.
type Server struct {
	*metric.Page

	queueWait, approvalWait, delivery metric.Histogram
	activations, refusedTools         metric.Counter
	capabilities, unknowns, approvals metric.Counter
}

// NewServer declares a server's numbers. What waits is read from the store when
// the page is asked.
func NewServer(version string, st *store.Store, feedAge func() (time.Duration, bool)) *Server {
	p := metric.New("server", version)
	s := &Server{
		Page:         p,
		queueWait:    p.Histogram("bivouac_queue_wait_seconds", "How long turns waited before they became active.", long...),
		approvalWait: p.Histogram("bivouac_approval_wait_seconds", "How long approvals waited for their answer or their end.", long...),
		delivery:     p.Histogram("bivouac_projection_lag_seconds", "How old an event was when a reader who had seen all before it got it.", short...),
		activations:  p.Counter("bivouac_activations_total", "Turns that became active, and conflicts: another was faster.", "result", ok, "conflict"),
		refusedTools: p.Counter("bivouac_tool_calls_refused_total", "Calls by a model of a tool that was not offered (name), or with arguments that its schema does not admit (schema).", "why", "name", "schema"),
		capabilities: p.Counter("bivouac_capabilities_total", "Capabilities asked of the signer: issued (ok), or denied with a code.", "code", codes()...),
		unknowns:     p.Counter("bivouac_unknown_outcomes_total", "Effects of which nobody knows any more whether they happened.", "kind", "action"),
		approvals:    p.Counter("bivouac_approvals_total", "Approvals that were answered or ended.", "state", "APPROVED", "DENIED", "EXPIRED"),
	}
	p.Gauges("store", s.waiting(st), waitingGauges...)
	p.Gauges("feed", func(context.Context) ([]metric.Sample, error) {
		age, known := feedAge()
		if !known {
			return nil, nil
		}
		return []metric.Sample{{Name: "bivouac_feed_age_seconds", Value: age.Seconds()}}, nil
	}, metric.Gauge{Name: "bivouac_feed_age_seconds", Help: "How old the broker said this deployment's feed was, when it was asked last."})
	return s
}

var waitingGauges = []metric.Gauge{
	{Name: "bivouac_queue_depth", Help: "What waits to begin, by kind.", Label: "kind", Allowed: []string{"turn", "attempt"}},
	{Name: "bivouac_queue_oldest_seconds", Help: "How long the oldest queued turn has waited."},
	{Name: "bivouac_turns_active", Help: "Turns under way."},
	{Name: "bivouac_approvals_pending", Help: "Approvals that wait for a person."},
	{Name: "bivouac_unknown_unresolved", Help: "Effects of unknown outcome that nobody has resolved."},
	{Name: "bivouac_ledgers_refused", Help: "Tenants whose ledger the broker refuses to sign: its database was changed, brought back, or two servers write it."},
	{Name: "bivouac_cleanup_debt", Help: "What has ended and is not known to be gone."},
	{Name: "bivouac_cleanup_oldest_seconds", Help: "For how long the oldest of the debt is due."},
	{Name: "bivouac_runner_links", Help: "Connected runners, by the transport that they use.", Label: "transport", Allowed: []string{"http/2", "http/3"}},
}

func (s *Server) waiting(st *store.Store) metric.ReadFunc {
	return func(ctx context.Context) (out []metric.Sample, err error) {
		err = st.View(ctx, store.AsLoop("metric"), func(tx *store.Tx) error {
			g, err := tx.Gauges()
			if err != nil {
				return err
			}
			since := func(t time.Time) float64 {
				if t.IsZero() {
					return 0
				}
				return max(0, tx.Now.Sub(t).Seconds())
			}
			refused, err := tx.RefusedLedgers()
			if err != nil {
				return err
			}
			out = []metric.Sample{
				{Name: "bivouac_ledgers_refused", Value: float64(len(refused))},
				{Name: "bivouac_queue_depth", Label: "turn", Value: float64(g.Queued)},
				{Name: "bivouac_queue_depth", Label: "attempt", Value: float64(g.Attempts)},
				{Name: "bivouac_queue_oldest_seconds", Value: since(g.OldestQueued)},
				{Name: "bivouac_turns_active", Value: float64(g.Active)},
				{Name: "bivouac_approvals_pending", Value: float64(g.Approvals)},
				{Name: "bivouac_unknown_unresolved", Value: float64(g.Unknown)},
				{Name: "bivouac_cleanup_debt", Value: float64(g.Cleanups)},
				{Name: "bivouac_cleanup_oldest_seconds", Value: since(g.OldestCleanup)},
				{Name: "bivouac_runner_links", Label: "http/2"}, {Name: "bivouac_runner_links", Label: "http/3"},
			}
			for transport, n := range g.Connections {
				out = append(out, metric.Sample{Name: "bivouac_runner_links", Label: transport, Value: float64(n)})
			}
			return nil
		})
		return out, err
	}
}

// Activated is engine.Meter's.
func (s *Server) Activated(waited time.Duration) {
	s.activations.Add(ok)
	s.queueWait.Observe(waited)
}

// ActivationLost is engine.Meter's.
func (s *Server) ActivationLost() { s.activations.Add("conflict") }

// ToolRefused is engine.Meter's.
func (s *Server) ToolRefused(why string) { s.refusedTools.Add(why) }

// Minted is engine.Meter's.
func (s *Server) Minted(refused protocol.Code) { s.capabilities.Add(cmp.Or(string(refused), ok)) }

// Unknown is engine.Meter's.
func (s *Server) Unknown() { s.unknowns.Add("action") }

// Decided is engine.Meter's.
func (s *Server) Decided(state string, waited time.Duration) {
	s.approvals.Add(state)
	s.approvalWait.Observe(waited)
}

// Delivered tells the age of an event that a reader got.
func (s *Server) Delivered(age time.Duration) { s.delivery.Observe(age) }

package edge

import (
	"context"
	"time"

	"bivouac/edge/metric"
)

// edgeGauges are what a runner shows of itself: its link, its load, its journal.
// Nothing of them names what it works for.
var edgeGauges = []metric.Gauge{
	{Name: "bivouac_edge_connected", Help: "One while the server consumes what this runner says."},
	{Name: "bivouac_edge_paused", Help: "One while the owner has paused this runner."},
	{Name: "bivouac_edge_transport", Help: "One for the transport in use.", Label: "transport", Allowed: []string{"http/2", "http/3"}},
	{Name: "bivouac_edge_connections_taken", Help: "How often a connection was taken at the server, over all starts: the epoch."},
	{Name: "bivouac_edge_attempts", Help: "Attempts on this machine.", Label: "state", Allowed: []string{"running", "stopping", "reporting"}},
	{Name: "bivouac_edge_slots", Help: "Turns that may run in sandboxes at once."},
	{Name: "bivouac_edge_journal_bytes", Help: "Size of the journal of device actions."},
	{Name: "bivouac_edge_certificate_seconds", Help: "How long the certificate is still valid."},
	{Name: "bivouac_edge_streams_open", Help: "Requests under way on the link."},
	{Name: "bivouac_edge_traffic_bytes", Help: "What the link carried since the daemon started.", Label: "direction", Allowed: []string{"in", "out"}},
	{Name: "bivouac_edge_trouble", Help: "One while some part of the daemon fails; bivouac-edge status says which."},
}

// page of numbers of a daemon; its machine's owner decides who may read it.
func (d *Daemon) page() *metric.Page {
	p := metric.New("edge", d.cfg.Version)
	p.Gauges("edge", func(context.Context) ([]metric.Sample, error) { return samples(d.Status(), time.Now()), nil }, edgeGauges...)
	return p
}

func samples(s Status, now time.Time) []metric.Sample {
	one := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	out := []metric.Sample{
		{Name: "bivouac_edge_connected", Value: one(s.Connected)},
		{Name: "bivouac_edge_paused", Value: one(s.Paused)},
		{Name: "bivouac_edge_transport", Label: "http/2", Value: one(s.Transport == "http/2")},
		{Name: "bivouac_edge_transport", Label: "http/3", Value: one(s.Transport == "http/3")},
		{Name: "bivouac_edge_connections_taken", Value: float64(s.Epoch)},
		{Name: "bivouac_edge_slots", Value: float64(s.Slots)},
		{Name: "bivouac_edge_journal_bytes", Value: float64(s.JournalBytes)},
		{Name: "bivouac_edge_trouble", Value: one(s.LastError != "")},
		{Name: "bivouac_edge_attempts", Label: "running"},
		{Name: "bivouac_edge_attempts", Label: "stopping"},
		{Name: "bivouac_edge_attempts", Label: "reporting"},
	}
	if !s.CertificateEnd.IsZero() {
		out = append(out, metric.Sample{Name: "bivouac_edge_certificate_seconds", Value: s.CertificateEnd.Sub(now).Seconds()})
	}
	for _, a := range s.Attempts {
		out = append(out, metric.Sample{Name: "bivouac_edge_attempts", Label: a.State, Value: 1})
	}
	for _, t := range s.Streams { // its kinds are methods, and not all are ours
		out = append(out, metric.Sample{Name: "bivouac_edge_streams_open", Value: float64(t.Open)},
			metric.Sample{Name: "bivouac_edge_traffic_bytes", Label: "in", Value: float64(t.BytesIn)},
			metric.Sample{Name: "bivouac_edge_traffic_bytes", Label: "out", Value: float64(t.BytesOut)})
	}
	return out
}

package metric

import (
	"context"

	"bivouac/edge/link"
	"bivouac/edge/metric"
)

// Traffic shows what a listener carried, by method: open streams, and bytes of
// bodies in both directions. Methods are those of the contract; whatever else is
// asked for counts as "other", so that no caller adds a series.
func (s *Server) Traffic(listener string, methods []string, m *link.Meter) {
	name := func(what string) string { return "bivouac_" + listener + "_" + what }
	open, in, out := name("streams_open"), name("received_bytes"), name("sent_bytes")
	s.Gauges(listener+"_traffic", func(context.Context) (samples []metric.Sample, err error) {
		for method, t := range m.Read() {
			samples = append(samples, metric.Sample{Name: open, Label: method, Value: float64(t.Open)},
				metric.Sample{Name: in, Label: method, Value: float64(t.BytesIn)}, metric.Sample{Name: out, Label: method, Value: float64(t.BytesOut)})
		}
		return samples, nil
	},
		metric.Gauge{Name: open, Help: "Requests under way at the " + listener + " listener, by method.", Label: "method", Allowed: methods},
		metric.Gauge{Name: in, Help: "What the " + listener + " listener received since this server started: bytes of bodies, by method.", Label: "method", Allowed: methods},
		metric.Gauge{Name: out, Help: "What the " + listener + " listener sent since this server started: bytes of bodies, by method.", Label: "method", Allowed: methods})
}

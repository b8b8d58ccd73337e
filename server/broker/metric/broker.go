// Package metric declares what a broker counts: names, help and the values that
// each label can take, between the broker's own words and the page of
// edge/metric.
//
// It guarantees a bounded number of series and refuses tenants, routes and
// destinations as labels: the page is for whoever runs the broker, and says
// nothing about who uses it for what. server/broker tests it with what happens.
package metric

import (
	"cmp"
	"context"
	"slices"
	"time"

	"bivouac/edge/metric"
	"bivouac/edge/protocol"
	"bivouac/server/broker"
)

// Broker counts for a broker: it is a broker.Meter.
type Broker struct {
	*metric.Page

	requests, tools, packages, denials metric.Counter
}

const ok = "ok"

// New declares a broker's numbers.
func New(version string) *Broker {
	codes := []string{ok}
	for c := range protocol.Codes {
		codes = append(codes, string(c))
	}
	slices.Sort(codes)
	var by []string
	for _, r := range broker.Refusals() {
		by = append(by, string(r))
	}
	p := metric.New("broker", version)
	return &Broker{
		Page:     p,
		requests: p.Counter("bivouac_broker_model_calls_total", "Model calls that ended, by their code.", "code", codes...),
		tools:    p.Counter("bivouac_broker_tool_calls_total", "Calls of http tools that ended, by their code.", "code", codes...),
		packages: p.Counter("bivouac_broker_package_requests_total", "Package requests of sandboxed code that ended, by their code.", "code", codes...),
		denials:  p.Counter("bivouac_broker_denials_total", "Requests that were refused, by what refused them.", "by", by...),
	}
}

// Ended is broker.Meter's.
func (b *Broker) Ended(kind string, by broker.Refusal, code protocol.Code) {
	counter := b.requests
	switch kind {
	case broker.KindTool:
		counter = b.tools
	case broker.KindEgress:
		counter = b.packages
	}
	counter.Add(cmp.Or(string(code), ok))
	if by != "" {
		b.denials.Add(string(by))
	}
}

// Watch adds what a running broker says when the page is asked.
func (b *Broker) Watch(of *broker.Broker) {
	b.Gauges("broker", func(context.Context) ([]metric.Sample, error) {
		out := []metric.Sample{{Name: "bivouac_broker_flows", Value: float64(of.OpenFlows())}}
		if age := of.FeedAge(); age >= 0 {
			out = append(out, metric.Sample{Name: "bivouac_feed_age_seconds", Value: age.Round(time.Millisecond).Seconds()})
		}
		return out, nil
	},
		metric.Gauge{Name: "bivouac_broker_flows", Help: "Requests under way."},
		metric.Gauge{Name: "bivouac_feed_age_seconds", Help: "Age of the newest reading of the server's feed; absent before the first one."})
}

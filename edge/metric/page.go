package metric

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Page is one process's numbers. It is safe for concurrent use.
type Page struct{ reg *prometheus.Registry }

// New page of a process, with what its runtime says of itself: memory,
// goroutines, descriptors, and the version that runs.
func New(process, version string) *Page {
	p := &Page{prometheus.NewRegistry()}
	p.reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "bivouac_build_info", Help: "One, with what runs.",
			ConstLabels: prometheus.Labels{"process": process, "version": version},
		}, func() float64 { return 1 }),
	)
	return p
}

// other is the value of a label for everything that was not declared.
const other = "other"

// Counter counts occurrences, by one label.
type Counter struct {
	vec     *prometheus.CounterVec
	allowed []string
}

// Counter declares a counter with a label and all values that it can take. Each
// of them is shown from the start: a counter that is absent cannot be watched.
func (p *Page) Counter(name, help, label string, allowed ...string) Counter {
	c := Counter{prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label}), allowed}
	p.reg.MustRegister(c.vec)
	for _, v := range append([]string{other}, allowed...) {
		c.vec.WithLabelValues(v)
	}
	return c
}

// Add counts one occurrence; a value that was not declared counts as "other".
func (c Counter) Add(value string) {
	if !slices.Contains(c.allowed, value) {
		value = other
	}
	c.vec.WithLabelValues(value).Inc()
}

// Histogram measures how long things take.
type Histogram struct{ h prometheus.Histogram }

// Histogram declares a distribution of durations, in seconds.
func (p *Page) Histogram(name, help string, buckets ...float64) Histogram {
	h := Histogram{prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})}
	p.reg.MustRegister(h.h)
	return h
}

// Observe one duration; what clocks made negative counts as none.
func (h Histogram) Observe(d time.Duration) { h.h.Observe(max(0, d.Seconds())) }

// Sample is one number that is read when the page is.
type Sample struct {
	// Name of a gauge that was declared.
	Name string
	// Label is the value of the gauge's label; empty for one that has none.
	Label string
	Value float64
}

// Gauge declares a number that is read when the page is.
type Gauge struct {
	Name, Help string
	// Label and what it can take; both empty: none.
	Label   string
	Allowed []string
}

// ReadFunc reads the gauges. What it leaves out is not shown: a number that is
// not known is no zero.
type ReadFunc func(ctx context.Context) ([]Sample, error)

// readTimeout bounds one reading: the page must answer while a store does not.
const readTimeout = 2 * time.Second

// Gauges declares gauges that are read together, by one question, when the page
// is. Whether the last reading worked is a gauge of its own, named by what.
func (p *Page) Gauges(what string, read ReadFunc, gauges ...Gauge) {
	c := collector{read: read, descs: map[string]desc{}, up: prometheus.NewDesc(
		"bivouac_readable", "One where the numbers of this part could be read, zero where not.", nil, prometheus.Labels{"part": what})}
	for _, g := range gauges {
		var labels []string
		if g.Label != "" {
			labels = []string{g.Label}
		}
		c.descs[g.Name] = desc{prometheus.NewDesc(g.Name, g.Help, labels, nil), g}
	}
	p.reg.MustRegister(c)
}

type desc struct {
	desc *prometheus.Desc
	of   Gauge
}

// collector reads gauges at each scrape.
type collector struct {
	read  ReadFunc
	descs map[string]desc
	up    *prometheus.Desc
}

// Describe is prometheus.Collector's.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.up
	for _, d := range c.descs {
		ch <- d.desc
	}
}

// Collect is prometheus.Collector's.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	samples, err := c.read(ctx)
	up := 1.0
	if err != nil {
		up = 0
	}
	ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, up)
	sums := map[Sample]float64{} // values that were not declared share one sample
	for _, s := range samples {
		if d, ok := c.descs[s.Name]; ok && d.of.Label != "" && !slices.Contains(d.of.Allowed, s.Label) {
			s.Label = other
		}
		sums[Sample{Name: s.Name, Label: s.Label}] += s.Value
	}
	for s, value := range sums {
		d, ok := c.descs[s.Name]
		switch {
		case !ok:
		case d.of.Label == "":
			ch <- prometheus.MustNewConstMetric(d.desc, prometheus.GaugeValue, value)
		default:
			ch <- prometheus.MustNewConstMetric(d.desc, prometheus.GaugeValue, value, s.Label)
		}
	}
}

package broker

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"bivouac/consul"
	"bivouac/edge/finding"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/protocol/brokerv1"
)

// reachTimeout bounds one look at one provider or tool.
const reachTimeout = 5 * time.Second

// LowDisk is what little space means for a broker.
const LowDisk = "all goes on until nothing is left; then no call is made whose record comes first, of models and of tools with effects"

// Diagnose says what this broker stands on, for a doctor that a server asks for.
func (s brokerService) Diagnose(ctx context.Context, _ *brokerv1.DiagnoseRequest) (*brokerv1.DiagnoseResponse, error) {
	cfg := s.cfg
	cfg.Caps = s.Caps() // as they are now
	out := &brokerv1.DiagnoseResponse{Tenants: cfg.NamedTenants()}
	for _, f := range s.Examine(ctx).All {
		out.Findings = append(out.Findings, &brokerv1.Finding{Check: f.Check, Level: string(f.Level), What: f.What, Why: f.Why, Mend: f.Mend})
	}
	return out, nil
}

// Examine looks at everything that a running broker depends on. No credential is
// used and nothing is sent: names, ports and certificates of providers are, and what
// their last calls said of the key. A server that holds the grants is asked with the
// broker's login there.
func (b *Broker) Examine(ctx context.Context) *finding.Report {
	r := finding.From("broker")
	b.examineFeed(r)
	b.examineFile(r)
	b.examineDebts(r)
	if files, ok := b.ports.Paths.(interface{ Location() string }); ok {
		ExaminePaths(r, files.Location())
	} else if server, ok := b.ports.Paths.(interface {
		Examine(ctx context.Context, r *finding.Report)
	}); ok { // intentions in a server
		server.Examine(ctx, r)
	}
	ExamineWays(ctx, r, b.cfg, b.ports.Egress)
	ExamineCommands(ctx, r, b.cfg, b.ports.Sandbox)
	b.examineKeys(ctx, r)
	b.tokens.Examine(r)
	ExamineCaps(r, b.Caps())
	if held, ok := b.ports.Authority.(interface {
		Examine(ctx context.Context, r *finding.Report)
	}); ok { // a server of its own
		held.Examine(ctx, r)
	}
	r.Disk(finding.Disk{Path: filepath.Dir(b.ports.CallLog), Holds: "keyring and call log", Low: LowDisk, Mend: "du -xh " + filepath.Dir(b.ports.CallLog) + " | sort -h | tail"})
	return r
}

func (b *Broker) examineFeed(r *finding.Report) {
	const why = "without a fresh feed nothing new is admitted"
	mend := "bivouac-broker run --server HOST:7401  (now: " + strings.Join(b.cfg.Servers, ", ") + "); the server's runner listener must be reachable from here"
	switch age := b.FeedAge(); {
	case age < 0:
		r.Bad("feed", "nothing was read from a server yet", why, mend)
	case age > b.cfg.FeedLimit:
		r.Bad("feed", "the newest reading is "+age.Round(100*time.Millisecond).String()+" old", why, mend)
	default:
		r.Fine("feed", "%s old, from %s", age.Round(time.Millisecond), strings.Join(b.cfg.Servers, ", "))
	}
	if now, ok := b.feed.Now(); ok {
		r.Clock("the server", now, time.Now(), time.Second)
	}
}

// ExaminePaths reads the entries of the paths directory anew.
func ExaminePaths(r *finding.Report, dir string) {
	if r.Err("paths", consul.Closed(dir), "they say who may reach what, and the broker does not start", "ls -l "+dir) {
		return
	}
	n, problems, err := consul.Examine(dir)
	switch {
	case r.Err("paths", err, "nothing is allowed without it", "mkdir -p "+dir):
	case len(problems) > 0:
		r.Bad("paths", strings.Join(problems, "\n"), "what these files name is denied until they are right", "edit the files in "+dir+"  (they count at once)")
	case n == 0:
		r.Warn("paths", dir+" has no entry", "no agent may reach anything", "bivouac explain TURN  (prints the entry that a refused turn needs)")
	default:
		r.Fine("paths", "%d entries in %s", n, dir)
	}
}

// ExamineCaps says what bounds the spend.
func ExamineCaps(r *finding.Report, c *Caps) {
	if c == nil || c.SpendUSDPerHour == nil {
		r.Fine("caps", "no caps in broker.hcl: at most %d USD in any hour", DefaultSpendUSD)
		return
	}
	if *c.SpendUSDPerHour <= 0 {
		r.Warn("caps", "spend_usd_per_hour is 0", "every model call with a price is refused", "edit the caps block of broker.hcl")
		return
	}
	r.Fine("caps", "at most %g USD in any hour, %d tenant(s) narrowed", *c.SpendUSDPerHour, len(c.Tenant))
}

// way is a place that requests go to.
type way struct {
	check, url string
	reach      func(context.Context) error
	mend       string
	err        error
}

// ExamineWays opens a connection to every provider and tool, at once.
func ExamineWays(ctx context.Context, r *finding.Report, c Config, n egress.Network) {
	var ways []way
	for _, m := range c.Models {
		ways = append(ways, c.way("provider."+m.Name, "model route "+m.Name, m.BaseURL, m.CAFile, m.AllowPrivate, n))
		if m.Price == nil {
			r.Warn("price."+m.Name, "the route has no price", "calls of unknown cost are refused", "add a price block to model \""+m.Name+"\" in broker.hcl")
		}
	}
	for _, d := range c.Destinations {
		if d.MCP.local() != nil {
			continue
		}
		if d.SSH != nil {
			ways = append(ways, c.wayOfSSH(d, n))
			continue
		}
		ways = append(ways, c.way("tool."+d.Name, "destination "+d.Name, d.URL, d.CAFile, d.AllowPrivate, n))
	}
	for _, o := range c.OAuth2 {
		ways = append(ways, c.way("oauth2."+o.Name, "the authorization server of credential "+o.Name, o.TokenURL, o.CAFile, o.AllowPrivate, n))
	}
	if len(c.Models) == 0 {
		r.Warn("providers", "broker.hcl has no model route", "no agent has a model", "add a model block to broker.hcl, and restart the broker")
	}
	var wg sync.WaitGroup
	for i := range ways {
		wg.Go(func() {
			w := &ways[i]
			ctx, cancel := context.WithTimeout(ctx, reachTimeout)
			defer cancel()
			if w.err == nil {
				w.err = w.reach(ctx)
			}
		})
	}
	wg.Wait()
	for _, w := range ways {
		if w.err != nil {
			r.Bad(w.check, w.err.Error(), "calls to it fail", w.mend+"  (from the broker's machine); see broker.hcl")
			continue
		}
		r.Fine(w.check, "%s can be reached", w.url)
	}
}

func (c Config) way(check, name, url, ca string, private bool, n egress.Network) way {
	w := way{check: check, url: url, mend: "curl -sv -o /dev/null " + url}
	base, err := egress.CheckBase(url, private)
	if err != nil {
		w.err = err
		return w
	}
	pem, err := c.readCA(ca)
	cfg := egress.Config{Name: name, Base: base, AllowPrivate: private, CA: pem, Network: n}
	w.reach, w.err = func(ctx context.Context) error { return egress.Reach(ctx, cfg) }, err
	return w
}

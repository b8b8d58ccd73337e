// Package doctor checks what a running server stands on, from inside it: the
// database by a commit, disk, certificates, the signing key, the broker in both
// directions, the runner listener as others reach it, and what has piled up.
//
// It guarantees that each finding names the command that mends it, and that a
// part that does not answer costs a few seconds and hides nothing. It refuses to
// say anything about what is in the store but counts. What can be said without a
// server is the server package's Examine.
package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/finding/reach"
	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/store"
)

// Broker is what is asked of the server's side of the trust.
type Broker interface {
	Describe(ctx context.Context) (*brokerv1.DescribeResponse, error)
	Diagnose(ctx context.Context) (*brokerv1.DiagnoseResponse, error)
	Certificate() (*tls.Certificate, error)
	Root() (*x509.Certificate, error)
	Certified() bool
}

// Config of a doctor; all but Network and TLS are required.
type Config struct {
	Store  *store.Store
	Broker Broker
	// DataDir holds the database or, beside PostgreSQL, blobs and identity.
	DataDir string
	// Began is when the data directory was made; zero: not known.
	Began time.Time
	// Advertised is how runners reach this server, AdvertisedBroker how their relays
	// reach the broker, BrokerAddress how the server does.
	Advertised, AdvertisedBroker, BrokerAddress string
	// TLS is the public certificate; nil: none.
	TLS     *x509.Certificate
	Network link.Network
	// FreeFunc measures a disk; nil: the system's measure.
	FreeFunc func(path string) (free, whole uint64, err error)
}

// Times of one examination.
const (
	slowCommit   = 500 * time.Millisecond
	reachTimeout = 3 * time.Second
	askTimeout   = 8 * time.Second
	maxFeedAge   = 2 * time.Second
	staleQueue   = 5 * time.Minute
	staleDebt    = time.Hour
)

// LowDisk is what little space means for a server.
const LowDisk = "all goes on until nothing is left; then no message is taken, no turn goes on and no file arrives, until there is room again"

// Examine looks at everything and reports it, the broker's own findings included.
func Examine(ctx context.Context, c Config) *finding.Report {
	x := exam{c, finding.From("server")}
	x.database(ctx)
	x.Disk(finding.Disk{Path: c.DataDir, Holds: "database, blobs and identity", Since: c.Began, FreeFunc: c.FreeFunc, Low: LowDisk,
		Mend: "du -xh " + c.DataDir + " | sort -h | tail"})
	x.piledUp(ctx)
	x.ledgers(ctx)
	x.certificates()
	Told(x.Report, x.Advertised, x.AdvertisedBroker)
	x.listener(ctx)
	x.broker(ctx)
	return x.Report
}

type exam struct {
	Config
	*finding.Report
}

func (x exam) database(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	start := time.Now()
	if err := x.Store.Probe(ctx); x.Err("database", err, "nothing is admitted that cannot be committed", "df -h "+x.DataDir+"; bivouac-server doctor  (on its machine)") {
		return
	}
	if took := time.Since(start); took > slowCommit {
		x.Warn("database", "a small commit took "+took.Round(time.Millisecond).String(), "every turn is a row of commits", "iostat -x 1  (another program may use the disk)")
	} else {
		x.Fine("database", "a commit took %s", took.Round(100*time.Microsecond))
	}
}

// piledUp says what waits longer than it should.
func (x exam) piledUp(ctx context.Context) {
	var g store.Gauges
	var now time.Time
	err := x.Store.View(ctx, store.AsLoop("doctor"), func(tx *store.Tx) (err error) {
		now = tx.Now
		g, err = tx.Gauges()
		return err
	})
	if err != nil {
		return // said by database
	}
	if !g.OldestQueued.IsZero() && now.Sub(g.OldestQueued) > staleQueue {
		x.Warn("queue", fmt.Sprintf("%d turn(s) wait, the oldest for %s", g.Queued, now.Sub(g.OldestQueued).Round(time.Second)), "somebody waits for them", "bivouac turns; bivouac explain TURN  (says what each waits for)")
	} else {
		x.Fine("queue", "%d turn(s) wait, %d under way, %d approval(s) open", g.Queued, g.Active, g.Approvals)
	}
	if g.Unknown > 0 {
		x.Warn("unknown", fmt.Sprintf("%d effect(s) of which nobody knows whether they happened", g.Unknown), "the same effect is refused until a person has looked", "bivouac unknown")
	}
	if !g.OldestCleanup.IsZero() && now.Sub(g.OldestCleanup) > staleDebt {
		x.Warn("debt", fmt.Sprintf("%d cleanup(s) are due, the oldest for %s", g.Cleanups, now.Sub(g.OldestCleanup).Round(time.Minute)), "something that ended may still be there", "bivouac debt")
	}
}

func (x exam) certificates() {
	const enrol = "bivouac-server --broker-code-file FILE  (with a code of bivouac-broker server-code)"
	cert, err := x.Broker.Certificate()
	if !x.Err("certificate", err, "runners and the broker know the server by it", enrol) {
		x.ends("certificate", "the certificate of the runner listener", cert.Leaf, 6*time.Hour, "restart bivouac-server  (it renews at two thirds of its life; see its log)")
	}
	if x.TLS != nil {
		x.ends("public certificate", "the certificate of the public API", x.TLS, 14*24*time.Hour, "renew it, and restart bivouac-server")
	}
	if !x.Broker.Certified() {
		x.Bad("signing key", "the broker has not certified one", "no capability is signed: turns wait", x.startBroker())
	} else {
		x.Fine("signing key", "certified")
	}
}

// startBroker is the whole command: a broker that was given its addresses by flags
// listens elsewhere without them.
func (x exam) startBroker() string {
	return "bivouac-broker run --listen " + x.BrokerAddress + " --server " + x.Advertised + "  (on its machine)"
}

func (x exam) ends(check, what string, c *x509.Certificate, soon time.Duration, mend string) {
	left := time.Until(c.NotAfter).Round(time.Minute)
	switch {
	case left <= 0:
		x.Bad(check, what+" ended "+c.NotAfter.UTC().Format(time.RFC3339), "it is refused", mend)
	case left < soon:
		x.Warn(check, fmt.Sprintf("%s ends in %s", what, left), "then it is refused", mend)
	default:
		x.Fine(check, "%s ends in %s", what, left)
	}
}

// Told judges the addresses that runners are told of server and broker. One
// machine alone is no mistake.
func Told(r *finding.Report, runners, broker string) {
	what, inside := finding.Told(runners, broker)
	switch {
	case what == "":
		r.Fine("addresses", "runners are told %s, and %s for the broker", runners, broker)
	case inside:
		r.Fine("addresses", "%s; for others: %s", what, finding.ServeOthers)
	default:
		r.Bad("addresses", what, "other machines join or work with them", finding.ServeOthers)
	}
}

// listener dials the address that runners are told.
func (x exam) listener(ctx context.Context) {
	root, err := x.Broker.Root()
	if err != nil {
		return // said by certificates
	}
	reach.Check(ctx, x.Report, reach.Peer{Check: "runners", Who: "this server's runner listener", Start: "restart bivouac-server; the address is --runners",
		Elsewhere: "bivouac-server --advertise-runners HOST:PORT",
		Link:      link.Config{Address: x.Advertised, Trust: link.Trust{Role: identity.RoleServer, Root: root}, Network: x.Network, DialTimeout: reachTimeout}})
}

// broker is asked for itself, and for what it sees.
func (x exam) broker(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	start := time.Now()
	d, err := x.Broker.Describe(ctx)
	if err != nil {
		x.Bad("broker", err.Error(), "no model and no tool is reached without it", x.startBroker())
		return
	}
	x.Fine("broker", "%s answers at %s in %s, %d model route(s), %d destination(s)", d.GetBrokerId(), x.BrokerAddress, time.Since(start).Round(time.Millisecond), len(d.GetModels()), len(d.GetDestinations()))
	age := time.Duration(d.GetFeedAgeMs()) * time.Millisecond
	mend := x.startBroker() + ", where " + x.Advertised + " is this server's runner listener as the broker reaches it"
	switch {
	case age < 0:
		x.Bad("feed", "the broker has not received this server's feed", "it admits nothing", mend)
	case age > maxFeedAge:
		x.Bad("feed", "the broker's feed is "+age.Round(100*time.Millisecond).String()+" old", "it admits nothing new", mend)
	default:
		x.Fine("feed", "the broker reads this server, %s ago", age)
	}
	res, err := x.Broker.Diagnose(ctx)
	if err != nil {
		x.Warn("broker's view", err.Error(), "what the broker stands on is not known", "bivouac-broker doctor  (on its machine)")
		return
	}
	for _, f := range res.GetFindings() {
		x.Add(finding.Finding{Where: "broker", Check: f.GetCheck(), Level: finding.Level(f.GetLevel()), What: f.GetWhat(), Why: f.GetWhy(), Mend: f.GetMend()})
	}
	Tenants(ctx, x.Report, x.Store, res.GetTenants())
}

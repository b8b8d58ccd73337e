package server

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/consul/catalog"
	"bivouac/consul/mesh"
	"bivouac/edge/finding"
	"bivouac/edge/identity"
	"bivouac/edge/lease"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/jobs"
	"bivouac/server/api"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/brokerlink"
	"bivouac/server/capability"
	"bivouac/server/doctor"
	"bivouac/server/engine"
	"bivouac/server/metric"
	"bivouac/server/runnerapi"
	"bivouac/server/scheduler"
	"bivouac/server/store"
	"bivouac/server/store/blob"
	"bivouac/server/trace"
	"bivouac/server/transfer"
)

// Server is one control plane. Make it with New, run it once.
type Server struct {
	cfg Config
	// listening is closed when the sockets are open.
	listening chan struct{}
	sockets   sockets
}

// New checks the configuration and starts nothing.
func New(c Config) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Elapsed == nil {
		c.Elapsed = lease.Boottime
	}
	return &Server{cfg: c, listening: make(chan struct{})}, nil
}

// Listening is closed once the sockets are open; PublicAddr and RunnerAddr are
// known then.
func (s *Server) Listening() <-chan struct{} { return s.listening }

// PublicAddr is where the API listens.
func (s *Server) PublicAddr() string { return s.sockets.public.Addr().String() }

// RunnerAddr is where runners and brokers are heard.
func (s *Server) RunnerAddr() string {
	if s.sockets.runners != nil {
		return s.sockets.runners.Addr().String()
	}
	return s.sockets.packets.LocalAddr().String()
}

// Run serves until ctx ends, then lets running calls finish for Grace and
// returns when everything is gone. A stop on request is no error.
func (s *Server) Run(ctx context.Context) (err error) {
	if s.sockets, err = listen(ctx, s.cfg); err != nil {
		return err
	}
	defer s.sockets.close()
	f, err := newFront(s.cfg, s.sockets.public)
	if err != nil {
		return err
	}
	close(s.listening)
	g, serving := errgroup.WithContext(ctx)
	g.Go(func() error { return f.run(serving) })
	g.Go(func() error {
		defer f.stop()
		return s.behind(serving, f)
	})
	err = g.Wait()
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	return err
}

// behind is everything that the public listener is the front of. With PostgreSQL
// it may have to be waited for.
func (s *Server) behind(ctx context.Context, f *front) (err error) {
	if code, err := s.cfg.code(); err != nil {
		return err
	} else if _, absent := os.Stat(s.cfg.DataDir); code == "" && errors.Is(absent, fs.ErrNotExist) {
		return brokerlink.NotEnrolled(s.cfg.DataDir) // before a directory is made that looks like a server's
	}
	if err := makeDataDir(s.cfg.DataDir); err != nil {
		return err
	}
	if s.cfg.Database != "" || s.cfg.DSNFile != "" { // SQLite locks it itself
		release, err := store.LockDirectory(s.cfg.DataDir)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	st, err := awaitStore(ctx, s.cfg, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	if _, err := settle(ctx, s.cfg, st); err != nil {
		return err
	}
	p, err := assemble(s.cfg, s.sockets, st)
	if err != nil {
		return err
	}
	p.front = f
	return p.run(ctx)
}

// plane is the assembled control plane.
type plane struct {
	cfg      Config
	sockets  sockets
	broker   *brokerlink.Link
	refused  *jobs.Refusals
	engine   *engine.Engine
	shared   *runnerapi.Shared
	feed     *runnerapi.Feed
	front    *front
	people   http.Handler
	machines runnerapi.Config
	meter    *metric.Server
	carried  *link.Meter     // by the listener of machines
	traces   *trace.Exporter // nil: nobody collects any
	nodes    *jobs.Watch     // nil: no Nomad is watched
	entry    *catalog.Entry  // nil: the server is in no Consul
	mesh     *mesh.Identity  // nil: it has no identity of Consul's
	stopping chan struct{}
	resetKey *[32]byte
}

func assemble(c Config, sk sockets, st *store.Store) (*plane, error) {
	p := &plane{cfg: c, sockets: sk, stopping: make(chan struct{}), refused: jobs.NewRefusals()}
	code, err := c.code()
	if err != nil {
		return nil, err
	}
	if p.mesh, err = meshOf(c); err != nil {
		return nil, err
	}
	signer := &capability.Signer{}
	p.broker, err = brokerlink.Open(brokerlink.Config{
		Address: c.BrokerAddress, Dir: c.DataDir, Code: code, Names: c.names(),
		Network: c.Network, Vouch: p.vouch(), Signer: signer, Log: c.Log,
	})
	if err != nil {
		return nil, err
	}
	rep, err := replica(c.DataDir)
	if err != nil {
		return nil, err
	}
	if p.resetKey, err = resetKey(c.DataDir); err != nil {
		return nil, err
	}
	dir, err := blob.Open(blob.Config{Path: c.blobs(), MaxBytes: c.MaxBlobBytes})
	if err != nil {
		return nil, err
	}
	place, err := placeOf(c.blobs())
	if err != nil {
		return nil, err
	}
	if c.TraceEndpoint != "" {
		if p.traces, err = trace.New(trace.Config{Store: st, Endpoint: c.TraceEndpoint, Version: c.Version, Client: c.TraceClient, Log: c.Log}); err != nil {
			return nil, err
		}
	}
	p.meter = metric.NewServer(c.Version, st, func() (time.Duration, bool) { return p.engine.FeedAge() })
	var nodes engine.Hosts
	p.nodes, nodes = p.watchNodes(c.Nomad)
	p.engine = engine.New(engine.Config{
		Hosts: nodes, Allocations: p.allocate(c.Nomad),
		Store: st, Broker: p.broker, Scheduler: scheduler.Embedded{}, Signer: signer, Replica: rep,
		Thumbprint: p.broker.Thumbprint(), Elapsed: c.Elapsed, Log: c.Log, Limits: c.Limits, Quotas: c.Quotas, Meter: p.meter,
		Alone: !st.Shared(), Blobs: place, EndedFunc: p.ended, Bytes: blobs{dir},
	})
	p.shared = runnerapi.Share(runnerapi.SharedConfig{Store: st, Own: p.broker, Replica: rep, EndsAt: p.endsAt, Log: c.Log})
	p.feed = runnerapi.NewFeed(st, p.shared, c.Log)
	return p, p.handlers(st, blobs{dir})
}

// ended tells who traces that a turn is over.
func (p *plane) ended(id protocol.TurnID) {
	if p.traces != nil {
		p.traces.Ended(id)
	}
}

// handlers joins the listeners to what they serve.
func (p *plane) handlers(st *store.Store, bytes transfer.Blobs) (err error) {
	advertised := p.cfg.advertisedRunner()
	if p.cfg.AdvertiseRunner == "" && p.sockets.runners != nil {
		advertised = p.sockets.runners.Addr().String() // with the port that was really given
	}
	people := api.Handler(api.Config{
		Engine: p.engine, Store: st, Blobs: bytes, Broker: p.broker, Root: p.broker.Root,
		RunnerAddress: advertised, BrokerAddress: p.cfg.advertisedBroker(), Version: p.cfg.Version, MaxBlobBytes: p.cfg.MaxBlobBytes,
		ExamineFunc: func(ctx context.Context) *finding.Report {
			return examineConsul(ctx, p.cfg, p.examineRefused(ctx, st, examineNomad(ctx, p.cfg.Nomad, doctor.Examine(ctx, p.patient(st, advertised)))))
		},
		TenantsFunc: func(ctx context.Context, named []*brokerv1.NamedTenant) *finding.Report {
			r := finding.From("server")
			doctor.Tenants(ctx, r, st, named)
			return r
		},
		Stopping: p.stopping, DeliveredFunc: p.meter.Delivered, Log: p.cfg.Log,
	})
	public := link.NewMeter(api.Methods()...)
	p.meter.Traffic("public", api.Methods(), public)
	p.carried = link.NewMeter(runnerapi.Methods()...)
	p.meter.Traffic("machines", runnerapi.Methods(), p.carried)
	people = public.Count(people)
	ready := &readiness{store: st, broker: p.broker, engine: p.engine, mesh: p.mesh}
	if p.entry, err = p.entryOf(ready, advertised); err != nil {
		return err
	}
	p.people = probes(people, ready.checks, p.stopping)
	p.machines = runnerapi.Config{
		Engine: p.engine, Store: st, Blobs: bytes, Trust: p.broker, Feed: p.feed,
		BrokerAddress: p.cfg.advertisedBroker(), MaxBlobBytes: p.cfg.MaxBlobBytes, Workloads: workloadsOf(p.cfg.Nomad, p.refused),
		Stopping: p.stopping, Log: p.cfg.Log,
	}
	return nil
}

// run starts every loop and returns when all are gone. Listeners end first, so
// that a call that is being answered still has an engine behind it.
func (p *plane) run(ctx context.Context) error {
	inner, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	g, gctx := errgroup.WithContext(inner)
	g.Go(func() error { return p.broker.Run(gctx) })
	g.Go(func() error {
		p.awaitEnrolment(gctx)
		return p.engine.Run(gctx)
	})
	g.Go(func() error { return p.shared.Run(gctx) })
	g.Go(func() error { return p.feed.Run(gctx) })
	if p.traces != nil {
		g.Go(func() error { return p.traces.Run(gctx) })
	}
	if p.nodes != nil {
		g.Go(func() error { return p.nodes.Run(gctx) })
	}
	if p.mesh != nil {
		g.Go(func() error { return p.mesh.Run(gctx) })
	}
	if p.entry != nil { // it leaves first, so that others stop coming
		g.Go(func() error { return p.runEntry(ctx, gctx) })
	}
	g.Go(func() error {
		err := p.serve(ctx, gctx)
		stop(errStopped)
		return err
	})
	err := g.Wait()
	if errors.Is(err, errStopped) || (err != nil && errors.Is(err, context.Canceled) && ctx.Err() != nil) {
		return nil
	}
	return err
}

// endsAt reads the end of a statement over a signing key.
func (p *plane) endsAt(jws string) (time.Time, error) {
	root, err := p.broker.Root()
	if err != nil {
		return time.Time{}, err
	}
	key, ok := root.PublicKey.(ed25519.PublicKey)
	if !ok {
		return time.Time{}, protocol.Errorf(protocol.CodeDataLoss, "the root key is not Ed25519")
	}
	s, err := capability.VerifyStatement(jws, key)
	return s.NotAfter, err
}

// enrolmentHead is how long the engine waits for a first enrolment: its first
// look at the broker would fail and be repeated much later than needed.
const enrolmentHead = 2 * time.Second

func (p *plane) awaitEnrolment(ctx context.Context) {
	t := time.NewTimer(enrolmentHead)
	defer t.Stop()
	select {
	case <-p.broker.Enrolled():
	case <-t.C: // deadlines pass without a broker too
	case <-ctx.Done():
	}
}

var errStopped = errors.New("the server was asked to stop")

// serve runs both listeners until ctx ends or something behind them failed.
func (p *plane) serve(ctx, behind context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(behind, cancel)()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-ctx.Done()
		close(p.stopping)
		return nil
	})
	p.front.answer(p.people)
	g.Go(func() error {
		<-ctx.Done()
		return p.front.stop()
	})
	g.Go(func() error { return p.serveMachines(ctx) })
	if p.sockets.metrics != nil {
		g.Go(func() error { return p.meter.Serve(ctx, p.sockets.metrics) })
	}
	started := time.Now()
	p.cfg.Log.Info("listening", "public", p.sockets.public.Addr(), "runners", p.cfg.RunnerAddress, "broker", p.cfg.BrokerAddress)
	if p.cfg.StartedFunc != nil {
		p.cfg.StartedFunc()
	}
	err := g.Wait()
	p.cfg.Log.Info("stopped listening", "up", time.Since(started).Round(time.Second))
	return err
}

// serveMachines waits for the server's certificate, then answers runners and
// brokers.
func (p *plane) serveMachines(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.broker.Enrolled():
	}
	root, err := p.broker.Root()
	if err != nil {
		return err
	}
	s, err := link.NewServer(link.ServerConfig{
		Handler: runnerapi.Handler(p.machines), Root: root, Certificate: p.broker.Certificate,
		Vouch: p.vouch(), VouchFrom: []identity.Role{identity.RoleBroker},
		ResetKey: p.resetKey, Meter: p.carried, Grace: p.cfg.Grace, Log: p.cfg.Log,
	})
	if err != nil {
		return err
	}
	return s.Serve(ctx, p.sockets.packets, p.sockets.runners)
}

package assembly

import (
	"context"
	"os"

	"golang.org/x/sync/errgroup"

	"bivouac/consul/catalog"
	"bivouac/consul/client"
	"bivouac/consul/settings"
	"bivouac/server/broker"
)

// consulOf a configuration; nil without a consul block.
func consulOf(cfg broker.Config) (*settings.Config, error) {
	if cfg.Consul == nil {
		return nil, nil
	}
	c, err := settings.Decode(settings.Broker, cfg.Consul.Body, cfg.Dir, os.Getenv)
	return &c, err
}

// entryOf the broker in Consul's catalog; nil where its file has no service block.
func entryOf(in *settings.Config, ready func(context.Context) error, id, listen string, o Options) (*catalog.Entry, error) {
	if in == nil || in.Service == nil {
		return nil, nil
	}
	asked, err := in.Client()
	if err != nil {
		return nil, err
	}
	p := catalog.Params{Agent: asked, Service: *in.Service, Of: settings.Broker, Instance: id, Address: listen, Version: o.Version, Ready: ready, Log: o.Log}
	if path := in.TokenPath(); path != "" {
		p.Token = client.TokenFile(path)
	}
	return catalog.New(p)
}

// runBeside keeps the entry while serve runs, and takes it out first where both stop.
func runBeside(ctx context.Context, entry *catalog.Entry, serve func(context.Context) error) error {
	if entry == nil {
		return serve(ctx)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serve(ctx) })
	g.Go(func() error { return entry.Run(ctx) })
	return g.Wait()
}

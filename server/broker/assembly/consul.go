package assembly

import (
	"context"
	"log/slog"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"

	"bivouac/consul/catalog"
	"bivouac/consul/client"
	"bivouac/consul/mesh"
	"bivouac/consul/settings"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/broker"
)

// consulOf a configuration; nil without a consul block.
func consulOf(cfg broker.Config) (*settings.Config, error) {
	if cfg.Consul == nil {
		return nil, nil
	}
	c, err := settings.Decode(settings.Broker, cfg.Consul.Body, cfg.Dir, os.Getenv)
	if err == nil && c.Service != nil && slices.Contains(cfg.Governed(), c.Service.Name) {
		err = protocol.Errorf(protocol.CodeInvalidArgument, "the broker's own service has the name %q, and so has something that it reaches: call one of them otherwise (service.name in the consul block, or the destination)", c.Service.Name)
	}
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

// governed are the names whose intentions count here: those of broker.hcl, and the broker's
// own where it is a service.
func governed(cfg broker.Config, in *settings.Config) []string {
	names := cfg.Governed()
	if in.Service != nil {
		names = append(names, in.Service.Name)
	}
	return names
}

// ownOf the broker as a service, and its identity in the mesh; nil where the consul block
// has no such block.
func ownOf(in *settings.Config, log *slog.Logger) (*broker.Own, *mesh.Identity, error) {
	if in == nil || in.Service == nil {
		return nil, nil, nil
	}
	own := &broker.Own{Service: in.Service.Name, Caller: in.Service.Peer}
	if in.Mesh == nil {
		return own, nil, nil
	}
	asked, err := in.Client()
	if err != nil {
		return nil, nil, err
	}
	return own, mesh.New(mesh.ParamsOf(settings.Broker, *in, asked, log)), nil
}

// vouchOf an identity as the link wants it: nothing, where there is none.
func vouchOf(i *mesh.Identity) link.Vouch {
	if i == nil {
		return nil
	}
	return i
}

// runBeside keeps entry and identity, where there are some, while serve runs.
func runBeside(ctx context.Context, entry *catalog.Entry, in *mesh.Identity, serve func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serve(ctx) })
	if entry != nil {
		g.Go(func() error { return entry.Run(ctx) })
	}
	if in != nil {
		g.Go(func() error { return in.Run(ctx) })
	}
	return g.Wait()
}

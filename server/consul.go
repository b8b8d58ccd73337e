package server

import (
	"context"
	"strings"

	"bivouac/consul/catalog"
	"bivouac/consul/client"
	"bivouac/consul/mesh"
	"bivouac/consul/settings"
	"bivouac/edge/finding"
	"bivouac/edge/link"
)

// meshOf a configuration; nil where server.hcl has no mesh block.
func meshOf(c Config) (*mesh.Identity, error) {
	if c.Consul == nil || c.Consul.Mesh == nil {
		return nil, nil
	}
	asked, err := c.Consul.Client()
	if err != nil {
		return nil, err
	}
	return mesh.New(mesh.ParamsOf(settings.Server, *c.Consul, asked, c.Log)), nil
}

// vouch is the mesh identity as the link wants it: nothing, where there is none.
func (p *plane) vouch() link.Vouch {
	if p.mesh == nil {
		return nil
	}
	return p.mesh
}

// entryOf the server in Consul's catalog: where the API is, with the address for runners
// and brokers in its meta. nil where server.hcl has no service block.
func (p *plane) entryOf(ready *readiness, runners string) (*catalog.Entry, error) {
	in := p.cfg.Consul
	if in == nil || in.Service == nil {
		return nil, nil
	}
	asked, err := in.Client()
	if err != nil {
		return nil, err
	}
	name, err := replica(p.cfg.DataDir)
	if err != nil {
		return nil, err
	}
	of := catalog.Params{
		Agent: asked, Service: *in.Service, Of: settings.Server, Instance: name.String(), Address: p.sockets.public.Addr().String(),
		More: map[string]string{"runners": runners}, Version: p.cfg.Version, Ready: ready.err, Log: p.cfg.Log,
	}
	if path := in.TokenPath(); path != "" {
		of.Token = client.TokenFile(path)
	}
	return catalog.New(of)
}

// runEntry until the server is asked to stop, or something behind it failed.
func (p *plane) runEntry(ctx, behind context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(behind, cancel)()
	return p.entry.Run(ctx)
}

// err says what is missing, all of it.
func (r *readiness) err(ctx context.Context) error {
	var missing []string
	for _, c := range r.checks(ctx) {
		if !c.OK {
			missing = append(missing, c.Name+": "+c.Problem)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return unready(strings.Join(missing, "\n"))
}

// examineConsul adds what is seen of Consul from here.
func examineConsul(ctx context.Context, c Config, r *finding.Report) *finding.Report {
	if c.Consul != nil {
		catalog.ExamineServer(ctx, r, *c.Consul)
	}
	return r
}

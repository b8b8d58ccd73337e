//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"bivouac/consul/intentions"
	"bivouac/consul/plan"
	"bivouac/consul/settings"
	"bivouac/server/broker"
	"bivouac/test/bench/rig"
	"bivouac/test/engines/consulserver"
	"bivouac/test/engines/engine"
)

// consulFigures are how fast an intention that somebody turns to deny in Consul ends the
// streams that stand on it, by the upstream's own clock. A Consul that is not on this
// machine is passed over, loudly.
func consulFigures(ctx context.Context, streams int) (err error) {
	p, err := engine.Consul.Find(ctx)
	if errors.Is(err, engine.ErrAbsent) {
		fmt.Printf("bench SKIPPED LOUDLY: the figures of %s: %v\n", engine.Consul.Name, err)
		return nil
	}
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bivouac-bench-consul-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := consulserver.StartIn(p, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	paths, err := newConsulPaths(s, dir)
	if err != nil {
		return err
	}
	defer paths.done()
	r, err := rig.StartUnder(ctx, filepath.Join(dir, "rig"), paths)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	var all []time.Duration
	var last time.Duration
	kept, others := 0, 0
	for range 3 {
		c, err := r.Flip(ctx, streams)
		if err != nil {
			return err
		}
		all, last = append(all, c.After...), max(last, c.LastRequest)
		kept, others = kept+c.Kept, others+c.Others
	}
	report("consul_streams_flip_p99", quantile(all, 0.99), "ms", 1000, false)
	report("consul_streams_flip_last_request", quantile([]time.Duration{max(last, 0)}, 1), "ms", 1000, false)
	report("consul_streams_flip_others_kept", float64(kept), "streams", float64(others), true)
	return nil
}

// consulPaths are a rig's paths as intentions in a Consul.
type consulPaths struct {
	server *consulserver.Server
	admin  *api.Client
	token  string
	done   func()
}

func newConsulPaths(s *consulserver.Server, dir string) (*consulPaths, error) {
	admin, done, err := s.Admin()
	if err != nil {
		return nil, err
	}
	p := &consulPaths{server: s, admin: admin, token: filepath.Join(dir, "token"), done: done}
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "rig"), 0o700), p.prepare()); err != nil {
		done()
		return nil, err
	}
	return p, nil
}

// prepare makes the broker's token, and the protocol without which Consul takes no
// permissions.
func (p *consulPaths) prepare() error {
	_, _, err := p.admin.ConfigEntries().Set(&api.ServiceConfigEntry{Kind: api.ServiceDefaults, Name: rig.Destination, Protocol: "http"}, nil)
	if err != nil {
		return err
	}
	policy, _, err := p.admin.ACL().PolicyCreate(&api.ACLPolicy{Name: plan.DefaultName, Rules: plan.Rules([]string{rig.Destination})}, nil)
	if err != nil {
		return err
	}
	token, _, err := p.admin.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLLink{{ID: policy.ID}}}, nil)
	if err != nil {
		return err
	}
	return os.WriteFile(p.token, []byte(token.SecretID+"\n"), 0o600)
}

// Open is the port of a consul block as an operator writes it.
func (p *consulPaths) Open(cfg broker.Config, log *slog.Logger) (broker.Paths, error) {
	text := fmt.Sprintf("address = %q\nca_file = %q\ntoken_file = %q\n", p.server.Address(), p.server.CAFile(), p.token)
	file, diags := hclsyntax.ParseConfig([]byte(text), "broker.hcl", hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diags
	}
	c, err := settings.Decode(settings.Broker, file.Body, "", func(string) string { return "" })
	if err != nil {
		return nil, err
	}
	return intentions.Open(c, cfg.Governed(), cfg.Authority, log)
}

func (p *consulPaths) Allow(agents ...string) error {
	e := &api.ServiceIntentionsConfigEntry{Kind: api.ServiceIntentions, Name: rig.Destination}
	for _, a := range agents {
		e.Sources = append(e.Sources, &api.SourceIntention{Name: "agent-" + a, Type: api.IntentionSourceConsul, Permissions: []*api.IntentionPermission{
			{Action: api.IntentionActionAllow, HTTP: &api.IntentionHTTPPermission{PathExact: rig.CallPath, Methods: []string{"POST"}}},
		}})
	}
	_, _, err := p.admin.ConfigEntries().Set(e, nil)
	return err
}

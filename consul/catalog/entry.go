package catalog

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"maps"
	"time"

	"bivouac/consul/client"
	"bivouac/consul/settings"
	"bivouac/edge/legible"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// Agent of Consul that keeps services; *client.Client is one.
type Agent interface {
	Put(ctx context.Context, path string, cas *uint64, body any) error
}

// Params of an Entry.
type Params struct {
	Agent Agent
	// Token that is sent; nil: none is. Another one has the service registered anew,
	// because the agent writes to the catalog with that of the registration.
	Token   func() (secret.Value, error)
	Service settings.Service
	Of      settings.Of
	// Instance is the same after a restart.
	Instance string
	// Address under which the process is reached where the block does not say it.
	Address string
	// More of the service's meta.
	More    map[string]string
	Version string
	// Ready says what the process lacks; nil: nothing.
	Ready func(context.Context) error
	Log   *slog.Logger
}

// Entry of one process in the catalog.
type Entry struct {
	p    Params
	id   string
	body map[string]any

	// Of Run's one goroutine.
	asked      bool // to be registered, whatever came of it
	registered bool
	token      [sha256.Size]byte
	passing    bool
	failing    string // what was logged last
}

const (
	// unready is how often a process that lacks something looks again.
	unready = time.Second
	// leaveIn bounds the goodbye of a process that stops.
	leaveIn = 3 * time.Second
	// maxOutput of a check, as people read it.
	maxOutput = 2000
)

// New checks the address. It asks nothing.
func New(p Params) (*Entry, error) {
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	at := p.Service.Address
	if at == "" {
		at = p.Address
	}
	host, port, err := settings.HostPort(at)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the service block of the consul block: %w", err)
	}
	e := &Entry{p: p, id: p.Service.Name + "-" + p.Instance}
	meta := map[string]string{}
	maps.Copy(meta, p.Service.Meta)
	maps.Copy(meta, p.More)
	meta["version"], meta["process"], meta["instance"] = p.Version, settings.DefaultName(p.Of), p.Instance
	e.body = map[string]any{
		"ID": e.id, "Name": p.Service.Name, "Tags": p.Service.Tags, "Meta": meta, "Address": host, "Port": port,
		"Check": map[string]any{
			"CheckID": e.check(), "Name": "readiness of " + settings.DefaultName(p.Of), "TTL": p.Service.TTL().String(), "Status": "critical",
			"Notes":                          "fed by the process itself",
			"DeregisterCriticalServiceAfter": p.Service.DeregisterAfter().String(),
		},
	}
	return e, nil
}

// ID of the service at its agent.
func (e *Entry) ID() string { return e.id }

func (e *Entry) check() string { return e.id + ":ready" }

// Run keeps the entry until ctx ends, and takes it out then.
func (e *Entry) Run(ctx context.Context) error {
	defer e.leave(context.WithoutCancel(ctx))
	for ctx.Err() == nil {
		err := e.tick(ctx)
		if ctx.Err() != nil {
			break
		}
		e.say(err)
		wait := e.p.Service.TTL() / 3
		if err != nil || !e.passing {
			wait = min(wait, unready)
		}
		op.Sleep(ctx, wait)
	}
	return nil
}

// tick says once how the process is, and registers it where nobody there knows it.
func (e *Entry) tick(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.p.Service.TTL())
	defer cancel()
	if err := e.enter(ctx); err != nil {
		return err
	}
	err := e.feed(ctx)
	if client.KindOf(err) == client.Absent { // the agent was started anew
		e.registered = false
		if err = e.enter(ctx); err == nil {
			err = e.feed(ctx)
		}
	}
	return err
}

// enter registers the service, unless it is there under the token of now.
func (e *Entry) enter(ctx context.Context) error {
	var token [sha256.Size]byte
	if e.p.Token != nil {
		v, err := e.p.Token()
		if err != nil {
			return err
		}
		token = sha256.Sum256([]byte(v.Reveal()))
	}
	if e.registered && token == e.token {
		return nil
	}
	e.asked = true // the answer may be lost where the agent took it
	if err := e.p.Agent.Put(ctx, "agent/service/register", nil, e.body); err != nil {
		return err
	}
	e.p.Log.InfoContext(ctx, "registered in Consul", "service", e.p.Service.Name, "id", e.id, "again", e.registered)
	e.registered, e.token = true, token
	return nil
}

// feed the check.
func (e *Entry) feed(ctx context.Context) error {
	status, output := "passing", "ready"
	if e.p.Ready != nil {
		limit, cancel := context.WithTimeout(ctx, e.p.Service.TTL()/3)
		err := e.p.Ready(limit)
		cancel()
		if err != nil {
			status, output = "critical", legible.Text(err.Error())
		}
	}
	if len(output) > maxOutput {
		output = output[:maxOutput] + "…"
	}
	err := e.p.Agent.Put(ctx, "agent/check/update/"+e.check(), nil, map[string]string{"Status": status, "Output": output})
	e.passing = err == nil && status == "passing"
	return err
}

// say what goes wrong, once, and that it is over.
func (e *Entry) say(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == e.failing:
	case err == nil:
		e.p.Log.Info("the entry in Consul's catalog is kept again", "service", e.p.Service.Name)
	case e.failing == "":
		e.p.Log.Warn("the entry in Consul's catalog is not kept; nothing else depends on it", "service", e.p.Service.Name, "error", err, "mend", client.Mend(err))
	}
	e.failing = text
}

// leave takes the service out. What cannot be reached now finds out by the check.
func (e *Entry) leave(ctx context.Context) {
	if !e.asked {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveIn)
	defer cancel()
	var err error
	if e.registered {
		// The agent takes it out of the catalog with the token of the registration, which
		// may have been replaced since.
		err = e.enter(ctx)
	}
	if err == nil {
		err = e.p.Agent.Put(ctx, "agent/service/deregister/"+e.id, nil, nil)
	}
	if err != nil && client.KindOf(err) != client.Absent {
		e.p.Log.Warn("the service may stay in Consul's catalog, and is critical soon then", "service", e.p.Service.Name, "error", err)
		return
	}
	e.asked, e.registered = false, false
	e.p.Log.Info("left Consul's catalog", "service", e.p.Service.Name)
}

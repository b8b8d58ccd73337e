package vaultpolicy

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/lease"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/audit"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/login"
	"bivouac/vaultpolicy/policies"
)

// Trust is what the broker's keyring lends: credentials are sealed to it.
type Trust interface {
	Recipient() (recipient, statement string)
	OpenCredential(tenant protocol.TenantID, name string, sealed []byte) (secret.Value, error)
	// OpenGrant opens what the keyring sealed before the grant moved here.
	OpenGrant(sealed []byte) (authority.Grant, authority.Rotation, error)
}

// Params of an adapter.
type Params struct {
	Config Config
	Trust  Trust
	Log    *slog.Logger
	// Elapsed counts suspend. Default lease.Boottime.
	Elapsed lease.Elapsed
	// Client replaces the one that Config describes, for tests.
	Client *client.Client
}

// Vault is the Authority port over one server. Its methods are safe for concurrent
// use, before Run too: what needs the server asks it then.
type Vault struct {
	cfg     Config
	names   policies.Names
	poll    time.Duration
	period  time.Duration
	trust   Trust
	log     *slog.Logger
	client  *client.Client
	session *login.Session

	table      *table
	openGrants *cache
	versions   versions // of credentials that were read

	look  op.Bell // something may have ended any grant: look those in use up now
	idle  op.Bell // and those that nobody uses
	fresh op.Bell // some are new
	named *queue  // look these up beside all others
	list  op.Bell // read the index now
	tell  op.Bell // somebody ended
	clean op.Bell // something is unfinished
	ends  *endings

	sources []source // of the audit's lines
}

// New checks and starts nothing.
func New(p Params) (*Vault, error) {
	c := p.Client
	if c == nil {
		var err error
		if c, err = p.Config.Client(); err != nil {
			return nil, err
		}
	}
	auth, err := p.Config.auth()
	if err != nil {
		return nil, err
	}
	if p.Elapsed == nil {
		p.Elapsed = lease.Boottime
	}
	v := &Vault{
		cfg:   p.Config,
		names: p.Config.names(), poll: duration(p.Config.PollText), period: duration(p.Config.PeriodText),
		trust: p.Trust, log: p.Log, client: c, session: login.New(c, auth, p.Log),
		table: newTable(p.Elapsed, duration(p.Config.GraceText)), openGrants: newCache(maxOpen),
		look: op.NewBell(), idle: op.NewBell(), fresh: op.NewBell(), named: newQueue(), list: op.NewBell(), tell: op.NewBell(), clean: op.NewBell(), ends: newEndings(),
	}
	if a := p.Config.Audit; a != nil {
		v.follow(sources(Audit{File: p.Config.path(a.File), Socket: p.Config.path(a.Socket)}, v.names.Grants, p.Log)...)
	}
	return v, nil
}

// Run watches the server until ctx ends. ended is called from one goroutine, for
// every grant that is known as revoked and for each that ends later. INV-13.
func (v *Vault) Run(ctx context.Context, ended func(authority.Ended)) error {
	defer v.client.Close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return v.session.Run(ctx) })
	g.Go(func() error { return v.watchIndex(ctx) })
	g.Go(func() error { return v.watchUsed(ctx) })
	g.Go(func() error { return v.watchIdle(ctx) })
	g.Go(func() error { return v.watchNamed(ctx) })
	g.Go(func() error { return v.finishAll(ctx) })
	g.Go(func() error { return v.tellAll(ctx, ended) })
	for _, from := range v.sources {
		g.Go(func() error {
			return from.follow(ctx, func(c audit.Change) { v.audited(from.written, c) })
		})
	}
	return g.Wait()
}

// tellAll is the one goroutine that calls ended.
func (v *Vault) tellAll(ctx context.Context, ended func(authority.Ended)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-v.tell:
		}
		for _, e := range v.table.untold() {
			ended(e)
		}
	}
}

// wake all look-ups: something may have ended any grant.
func (v *Vault) wake() {
	v.look.Ring()
	v.idle.Ring()
}

// Alive answers from memory.
func (v *Vault) Alive(_ context.Context, id protocol.GrantID) error {
	hint, err := v.table.alive(id)
	switch hint {
	case lookNow:
		v.named.add(named{token: true}, id)
	case listNow:
		v.list.Ring()
	}
	return err
}

// write with the broker's token. what completes "the broker may not …".
func (v *Vault) write(ctx context.Context, what, path string, body map[string]any) (a client.Answer, err error) {
	err = v.session.Do(ctx, func(ctx context.Context, token secret.Value) error {
		a, err = v.client.Write(ctx, token, path, body)
		return err
	})
	return a, v.may(what, "write "+path, err)
}

// read with the broker's token.
func (v *Vault) read(ctx context.Context, what, path string) (a client.Answer, err error) {
	err = v.session.Do(ctx, func(ctx context.Context, token secret.Value) error {
		a, err = v.client.Read(ctx, token, path)
		return err
	})
	return a, v.may(what, "read "+path, err)
}

func (v *Vault) listing(ctx context.Context, what, path string) (names []string, err error) {
	err = v.session.Do(ctx, func(ctx context.Context, token secret.Value) error {
		names, err = v.client.List(ctx, token, path)
		return err
	})
	return names, v.may(what, "list "+path, err)
}

func (v *Vault) delete(ctx context.Context, what, path string) error {
	err := v.session.Do(ctx, func(ctx context.Context, token secret.Value) error { return v.client.Delete(ctx, token, path) })
	return v.may(what, "delete "+path, err)
}

// may names the right that is missing where a living login is refused.
func (v *Vault) may(what, right string, err error) error {
	if client.KindOf(err) != client.Refused {
		return err
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition,
		"the broker may not %s: its login%s has no right to %s (%w); bivouac vault check says what is missing, and which command mends it", what, v.session.Holder(), right, err)
}

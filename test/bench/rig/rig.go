// Package rig is a broker over real sockets with everything around it that a
// measurement needs: a feed that can take authority back, path files that can be
// flipped, an upstream that notes by its own clock when each answer began and
// ended, and callers with certificates of the deployment. It measures; what a
// figure means is for its reader to judge.
package rig

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"filippo.io/age"
	"golang.org/x/sync/errgroup"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/keyring"
	"bivouac/server/capability"
)

// Agents that the paths file lets reach the model at the start.
const (
	Agent = "assistant"
	Other = "other"
)

// Rig is one running broker with its surroundings.
type Rig struct {
	Upstream *Upstream

	dir, address string
	keys         *keyring.Keyring
	held         broker.Authority
	paths        Paths
	broker       *broker.Broker
	feed         *feed
	signing      *capability.Key
	tenant       protocol.TenantID
	server       *tls.Certificate
	stop         context.CancelFunc
	running      *errgroup.Group
}

// Holder makes what holds the grants and credentials of a rig's tenant over its
// keyring. The broker runs it.
type Holder func(ctx context.Context, keys *keyring.Keyring, tenant protocol.TenantID) (broker.Authority, error)

// Start a rig in a directory of its own, over the keyring alone. Close ends it.
func Start(ctx context.Context, dir string) (*Rig, error) {
	return StartOn(ctx, dir, func(_ context.Context, keys *keyring.Keyring, _ protocol.TenantID) (broker.Authority, error) {
		return keys, nil
	})
}

// StartOn starts a rig whose grants and credentials somebody else holds.
func StartOn(ctx context.Context, dir string, hold Holder) (*Rig, error) {
	return start(ctx, &Rig{dir: dir, paths: files(dir)}, hold)
}

// StartUnder starts a rig over the keyring, with paths that somebody else holds.
func StartUnder(ctx context.Context, dir string, paths Paths) (*Rig, error) {
	return start(ctx, &Rig{dir: dir, paths: paths}, func(_ context.Context, keys *keyring.Keyring, _ protocol.TenantID) (broker.Authority, error) {
		return keys, nil
	})
}

func start(ctx context.Context, r *Rig, hold Holder) (*Rig, error) {
	r.tenant = newID[protocol.TenantKind]()
	ctx, r.stop = context.WithCancel(ctx)
	r.running, ctx = errgroup.WithContext(ctx)
	if err := r.start(ctx, hold); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func newID[K protocol.Kind]() protocol.ID[K] { return protocol.NewID[K](time.Now(), rand.Reader) }

func (r *Rig) start(ctx context.Context, hold Holder) error {
	data := filepath.Join(r.dir, "broker")
	if _, err := keyring.Init(data); err != nil {
		return err
	}
	var err error
	if r.keys, err = keyring.Open(data); err != nil {
		return err
	}
	if r.held, err = hold(ctx, r.keys, r.tenant); err != nil {
		return err
	}
	if err := store(ctx, r.held, r.tenant, RouteKey, "sk-"+rand.Text()+rand.Text()); err != nil {
		return err
	}
	if r.signing, err = capability.NewKey(rand.Reader); err != nil {
		return err
	}
	if r.server, err = r.certify(identity.RoleServer); err != nil {
		return err
	}
	if r.Upstream, err = startUpstream(ctx, r.running); err != nil {
		return err
	}
	if r.feed, err = r.startFeed(ctx); err != nil {
		return err
	}
	if err := r.Allow(Agent, Other); err != nil {
		return err
	}
	if err := r.startBroker(ctx, data); err != nil {
		return err
	}
	return r.ready(ctx)
}

// RouteKey is the credential of the model's route: answers are searched for it.
const RouteKey = "measured"

// store a credential of a tenant, sealed as the command line does.
func store(ctx context.Context, at broker.Authority, tenant protocol.TenantID, name, value string) error {
	recipient, _ := at.Recipient()
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return err
	}
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, to)
	if err != nil {
		return err
	}
	err = json.NewEncoder(w).Encode(map[string]string{"name": name, "value": value})
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	return at.PutCredential(ctx, tenant, name, sealed.Bytes())
}

// certify makes a key with a certificate of this deployment.
func (r *Rig) certify(role identity.Role) (*tls.Certificate, error) {
	key := identitytest.NewKey()
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	leaf := authority.Leaf{Role: role, ID: keyring.ServerID(spki).String(), SPKI: spki}
	if role == identity.RoleRunner {
		leaf.ID, leaf.Tenant = identity.RunnerID(spki).String(), r.tenant
	}
	chain, _, err := r.keys.Issue(context.Background(), leaf)
	if err != nil {
		return nil, err
	}
	certs, err := identity.ParsePEM(chain)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{certs[0].Raw}, PrivateKey: key, Leaf: certs[0]}, nil
}

const config = `
servers = [%q]
paths   = "paths"
model "main" {
  base_url        = %q
  allow_private   = true
  model           = "measured"
  credential      = "measured"
  data_boundaries = ["personal"]
  price {
    input_usd_per_mtok  = 0
    output_usd_per_mtok = 0
  }
}
`

func (r *Rig) startBroker(ctx context.Context, data string) error {
	cfg, err := broker.ParseConfig(fmt.Appendf(nil, config, r.feed.address, r.Upstream.URL+"/v1"), filepath.Join(r.dir, "broker.hcl"))
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	paths, err := r.paths.Open(cfg, log)
	if err != nil {
		return err
	}
	r.broker, err = broker.New(cfg, broker.Ports{Authority: r.held, Root: r.keys, Paths: paths, CallLog: filepath.Join(data, "calls.log"), ResetKey: r.keys.ResetKey(), Log: log})
	if err != nil {
		return err
	}
	packets, listener, err := listen()
	if err != nil {
		return err
	}
	r.address = listener.Addr().String()
	r.running.Go(func() error { return r.broker.Run(ctx, packets, listener) })
	return nil
}

// listen on one free port of loopback, for UDP and TCP.
func listen() (net.PacketConn, net.Listener, error) {
	var last error
	for range 20 { // the port may be taken for UDP
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, nil, err
		}
		p, err := net.ListenPacket("udp", l.Addr().String())
		if err == nil {
			return p, l, nil
		}
		last = errors.Join(err, l.Close())
	}
	return nil, nil, last
}

// ready waits until a call is answered: the feed is current then.
func (r *Rig) ready(ctx context.Context) error {
	c, err := r.Server()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		_, err := c.Call(ctx, Work{Agent: Agent}, "quick", nil)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the broker never answered: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Allow exactly these agents to reach the model. It returns when that is written down,
// not when the broker has seen it.
func (r *Rig) Allow(agents ...string) error { return r.paths.Allow(agents...) }

// Close ends everything that Start began.
func (r *Rig) Close() error {
	r.stop()
	err := r.running.Wait()
	if errors.Is(err, context.Canceled) || errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	if r.keys != nil {
		err = errors.Join(err, r.keys.Close())
	}
	return err
}

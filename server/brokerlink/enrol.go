package brokerlink

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
)

// Waits between tries to reach a broker.
const (
	retryBase = 100 * time.Millisecond
	retryMax  = 5 * time.Second
)

// runEnrol tries until the broker accepted the code. A broker that cannot be
// reached may come back; one that refuses has the last word.
func (l *Link) runEnrol(ctx context.Context) error {
	back := link.Backoff{Base: retryBase, Max: retryMax}
	for {
		select {
		case <-l.enrolled:
			return nil
		default:
		}
		err := l.enrol(ctx)
		switch {
		case err == nil:
			l.cfg.Log.InfoContext(ctx, "enrolled at the broker", "broker", l.cfg.Address)
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !protocol.CodeOf(err).Retryable():
			return protocol.Errorf(protocol.CodeOf(err),
				"the broker %s refused this server: %w; make a new code with bivouac-broker server-code", l.cfg.Address, err)
		}
		l.cfg.Log.WarnContext(ctx, "the broker cannot be reached yet", "broker", l.cfg.Address, "error", err)
		if err := pause(ctx, back.Next()); err != nil {
			return err
		}
	}
}

// enrol introduces the server's key to the broker that the code pins.
func (l *Link) enrol(ctx context.Context) error {
	self, err := identity.SelfSigned(l.key, time.Now())
	if err != nil {
		return err
	}
	conn, err := link.NewClient(link.Config{
		Address:     l.cfg.Address,
		Trust:       link.Trust{Role: identity.RoleBroker, Fingerprint: l.code.Fingerprint},
		Certificate: func() (*tls.Certificate, error) { return &self, nil },
		Network:     l.cfg.Network,
	})
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // one call
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	res, err := dialled(conn).trust.EnrollServer(ctx, &brokerv1.EnrollServerRequest{Code: l.code.Reveal(), Names: l.cfg.Names})
	if err != nil {
		return coded(err)
	}
	creds, err := newCredentials(l.key, asPEM(res.GetCertificateChain()), asPEM(res.GetRootCertificate()))
	if err != nil {
		return err
	}
	if got := identity.Fingerprint(creds.root); got != l.code.Fingerprint {
		return protocol.Errorf(protocol.CodeUnauthenticated, "the broker answered with the root %s, the code names %s", got, l.code.Fingerprint)
	}
	if err := creds.save(l.cfg.Dir); err != nil {
		return err
	}
	return l.adopt(creds)
}

// runRenew gets a new certificate for the same key at two thirds of its life.
func (l *Link) runRenew(ctx context.Context) error {
	back := link.Backoff{Base: retryBase, Max: time.Minute}
	for {
		c, err := l.credentials()
		if err != nil {
			return err
		}
		leaf := c.leaf.Leaf
		wait := time.Until(leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) * 2 / 3))
		if wait > 0 {
			if err := pause(ctx, min(wait, time.Hour)); err != nil {
				return nil //nolint:nilerr // stopped
			}
			continue
		}
		if err := l.renew(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			l.cfg.Log.ErrorContext(ctx, "the server's certificate was not renewed", "ends", leaf.NotAfter, "error", err)
			if pause(ctx, time.Second+back.Next()) != nil {
				return nil
			}
			continue
		}
		back.Reset()
	}
}

func (l *Link) renew(ctx context.Context) error {
	p, err := l.services()
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	res, err := p.trust.RenewServer(call, &brokerv1.RenewServerRequest{Names: l.cfg.Names})
	if err != nil {
		return coded(err)
	}
	old, err := l.credentials()
	if err != nil {
		return err
	}
	next, err := newCredentials(l.key, asPEM(res.GetCertificateChain()), old.rootPEM)
	if err != nil {
		return err
	}
	if err := next.save(l.cfg.Dir); err != nil {
		return err
	}
	l.mu.Lock()
	l.creds = next
	conn := l.conn
	l.mu.Unlock()
	l.cfg.Log.InfoContext(ctx, "the server's certificate was renewed", "ends", next.leaf.Leaf.NotAfter)
	// The broker judges a connection by the certificate of its handshake.
	return conn.Redial(ctx)
}

// asPEM accepts a certificate in either form.
func asPEM(b []byte) []byte {
	if block, _ := pem.Decode(b); block != nil || len(b) == 0 {
		return b
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b})
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

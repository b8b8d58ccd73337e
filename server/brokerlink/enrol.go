package brokerlink

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/op"
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
		err := l.introduce(ctx)
		switch {
		case err == nil:
			l.cfg.Log.InfoContext(ctx, "enrolled at the broker", "broker", l.cfg.Address)
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !protocol.CodeOf(err).Retryable():
			return protocol.Errorf(protocol.CodeOf(err), "the broker %s refused this server: %w; %s", l.cfg.Address, err, needsCode)
		}
		l.cfg.Log.WarnContext(ctx, "the broker cannot be reached yet", "broker", l.cfg.Address, "error", err)
		if !op.Sleep(ctx, back.Next()) {
			return context.Cause(ctx)
		}
	}
}

// introduce gets a first certificate, or one in the place of one that ended.
func (l *Link) introduce(ctx context.Context) error {
	if l.lapsed != nil {
		next, err := l.renewAlone(ctx, l.lapsed)
		switch {
		case err == nil:
			return l.adopt(next)
		case l.code == nil || protocol.CodeOf(err).Retryable():
			return err
		}
		l.cfg.Log.WarnContext(ctx, "the broker does not know this server's key any more; trying the code", "error", err)
	}
	creds, err := l.enrol(ctx)
	if err != nil {
		return err
	}
	return l.adopt(creds)
}

// enrol introduces the server's key to the broker that the code pins.
func (l *Link) enrol(ctx context.Context) (*credentials, error) {
	conn, err := l.alone(link.Trust{Role: identity.RoleBroker, Fingerprint: l.code.Fingerprint})
	if err != nil {
		return nil, err
	}
	defer conn.Close() // one call
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	res, err := dialled(conn).trust.EnrollServer(ctx, &brokerv1.EnrollServerRequest{Code: l.code.Reveal(), Names: l.cfg.Names})
	if err != nil {
		return nil, coded(err)
	}
	creds, err := newCredentials(l.key, asPEM(res.GetCertificateChain()), asPEM(res.GetRootCertificate()))
	if err != nil {
		return nil, err
	}
	if got := identity.Fingerprint(creds.root); got != l.code.Fingerprint {
		return nil, protocol.Errorf(protocol.CodeUnauthenticated, "the broker answered with the root %s, the code names %s", got, l.code.Fingerprint)
	}
	return creds, creds.save(l.cfg.Dir)
}

// alone is a connection on which the key speaks for itself, without a
// certificate of the root.
func (l *Link) alone(trust link.Trust) (*link.Client, error) {
	self, err := identity.SelfSigned(l.key, time.Now())
	if err != nil {
		return nil, err
	}
	return link.NewClient(link.Config{
		Address: l.cfg.Address, Trust: trust, Network: l.cfg.Network, Vouch: l.cfg.Vouch,
		Certificate: func() (*tls.Certificate, error) { return &self, nil },
	})
}

// renewAlone renews a certificate that has ended: the key stays enrolled.
func (l *Link) renewAlone(ctx context.Context, old *credentials) (*credentials, error) {
	conn, err := l.alone(link.Trust{Role: identity.RoleBroker, Root: old.root})
	if err != nil {
		return nil, err
	}
	defer conn.Close() // one call
	return l.renewOver(ctx, dialled(conn), old)
}

// renewOver asks for the next certificate and keeps it.
func (l *Link) renewOver(ctx context.Context, p *peers, old *credentials) (*credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	res, err := p.trust.RenewServer(ctx, &brokerv1.RenewServerRequest{Names: l.cfg.Names})
	if err != nil {
		return nil, coded(err)
	}
	next, err := newCredentials(l.key, asPEM(res.GetCertificateChain()), old.rootPEM)
	if err != nil {
		return nil, err
	}
	return next, next.save(l.cfg.Dir)
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
			back.Reset()
			if !op.Sleep(ctx, min(wait, time.Hour)) {
				return nil // stopped
			}
			continue
		}
		if err := l.renew(ctx); err != nil && ctx.Err() == nil {
			l.cfg.Log.ErrorContext(ctx, "the server's certificate was not renewed", "ends", leaf.NotAfter, "error", err)
		}
		// Also after a success: where clocks are far apart the next one is due at once.
		if !op.Sleep(ctx, time.Second+back.Next()) {
			return nil
		}
	}
}

func (l *Link) renew(ctx context.Context) error {
	old, err := l.credentials()
	if err != nil {
		return err
	}
	var next *credentials
	if time.Now().Before(old.leaf.Leaf.NotAfter) {
		var p *peers
		if p, err = l.services(); err == nil {
			next, err = l.renewOver(ctx, p, old)
		}
	} else { // the broker was away for a day
		next, err = l.renewAlone(ctx, old)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.creds = next
	conn := l.conn
	l.mu.Unlock()
	l.cfg.Log.InfoContext(ctx, "the server's certificate was renewed", "ends", next.leaf.Leaf.NotAfter)
	// The broker judges a connection by the certificate of its handshake.
	return conn.Redial(ctx, nil)
}

// asPEM accepts a certificate in either form.
func asPEM(b []byte) []byte {
	if block, _ := pem.Decode(b); block != nil || len(b) == 0 {
		return b
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b})
}

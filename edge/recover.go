package edge

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/runnerv1/runnerv1connect"
	"bivouac/edge/state"
)

// recoverable reports an error that a new certificate, or a look at the server's
// clock, may mend: ours is lost, the server does not accept its dates any more, or we
// do not accept the server's.
func recoverable(dir *state.Dir, err error) bool {
	if err == nil {
		return false
	}
	if link.OutOfDate(err) || dir.CertificateLost() {
		return true
	}
	var ce *connect.Error
	return errors.As(err, &ce) && connect.IsWireError(ce) && protocol.CodeOf(err) == protocol.CodeUnauthenticated
}

// isCopy reports a server that knows another machine by our key.
func isCopy(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && connect.IsWireError(ce) && protocol.CodeOf(err) == protocol.CodeAlreadyExists
}

// recoverEvery is how long a recovered certificate must have been tried before
// another one is asked for.
const recoverEvery = time.Minute

// recoverLink gets a new certificate with the device key. why is what the link
// failed with; it stays the error when the server cannot be reached.
func (d *Daemon) recoverLink(ctx context.Context, why error) error {
	if now := d.cfg.Elapsed(); d.recovered != 0 && now-d.recovered < recoverEvery {
		return protocol.Errorf(protocol.CodeUnavailable, "the server does not accept this machine although it has just given it a certificate: %w", why)
	}
	behind, err := recoverRunner(ctx, d.cfg.State, d.enrolment.Server, d.cfg.Network)
	if err != nil {
		return fmt.Errorf("%w; this machine tried to recover with its device key, because %w", err, why)
	}
	d.recovered = d.cfg.Elapsed()
	d.noteClock(behind)
	d.log.InfoContext(ctx, "the certificate was recovered with the device key", "because", why)
	d.link.Drop()
	return nil
}

// recoverRunner gets a new certificate for the device key of an enrolled machine,
// however long it was away and whatever its clock says. Dates play no part in
// meeting the server: its chain must end at the pinned root. What it then says is
// checked: the certificate is of our key, under that root, and younger than the
// one that we had, and the time that it gives lies within its dates. behind is how
// far our clock is behind that.
func recoverRunner(ctx context.Context, dir *state.Dir, server string, network link.Network) (behind time.Duration, err error) {
	root, err := dir.Root()
	if err != nil {
		return 0, err
	}
	key, err := dir.Key(false)
	if err != nil {
		return 0, err
	}
	introduction, err := identity.SelfSigned(key, time.Now())
	if err != nil {
		return 0, err
	}
	client, err := link.NewClient(link.Config{
		Address:     server,
		Trust:       link.Trust{Role: identity.RoleServer, Fingerprint: identity.Fingerprint(root)},
		Certificate: func() (*tls.Certificate, error) { return &introduction, nil },
		Network:     network,
	})
	if err != nil {
		return 0, err
	}
	defer client.Close()
	rpc := runnerv1connect.NewRunnerServiceClient(client, client.URL())
	ask, err := call(ctx, rpc.RecoverChallenge, &runnerv1.RecoverChallengeRequest{})
	if err != nil {
		return 0, err
	}
	res, err := call(ctx, rpc.Recover, &runnerv1.RecoverRequest{
		Challenge:         ask.GetChallenge(),
		Signature:         ed25519.Sign(key, identity.RecoverStatement(root, ask.GetChallenge())),
		CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(),
	})
	if err != nil {
		return 0, err
	}
	return keepRecovered(dir, res, time.Now())
}

// keepRecovered checks and stores what the server gave.
func keepRecovered(dir *state.Dir, res *runnerv1.RecoverResponse, now time.Time) (behind time.Duration, err error) {
	root, err := dir.Root()
	if err != nil {
		return 0, err
	}
	chain, err := identity.ParsePEM(res.GetCertificateChain())
	if err != nil {
		return 0, err
	}
	leaf := chain[0]
	theirs := time.UnixMicro(res.GetServerTimeUs())
	if _, err := identity.VerifyChain(chain, root, theirs); err != nil {
		return 0, protocol.Errorf(protocol.CodeUnauthenticated, "the certificate that the server gave is not of its root, or not of the time that it says: %w", err)
	}
	if old, err := dir.Certificate(); err == nil && leaf.NotBefore.Before(old.Leaf.NotBefore) {
		return 0, protocol.Errorf(protocol.CodeUnauthenticated, "the certificate that the server gave is older than this machine's own")
	}
	if err := dir.SaveCertificate(res.GetCertificateChain()); err != nil {
		return 0, err
	}
	return dir.SaveClock(theirs, now)
}

// setClock compares our clock with the server's, at every connect: a clock that
// was set right is believed again. A time outside of the dates of our certificate,
// which are the root's word, is not believed.
func (d *Daemon) setClock(theirs time.Time) {
	c, err := d.cfg.State.Certificate()
	if err != nil || theirs.Before(c.Leaf.NotBefore) || theirs.After(c.Leaf.NotAfter) {
		return
	}
	behind, err := d.cfg.State.SaveClock(theirs, time.Now())
	if err != nil {
		d.problems.note("state", err)
		return
	}
	d.noteClock(behind)
}

// noteClock tells the owner of a clock that is off. Leases count elapsed time and
// dates of certificates are judged by the server's clock: work goes on (INV-20).
func (d *Daemon) noteClock(behind time.Duration) {
	switch {
	case behind == 0:
		d.problems.note("clock", nil)
	case behind > 0:
		d.problems.note("clock", protocol.Errorf(protocol.CodeFailedPrecondition,
			"this machine's clock is %s behind the server's: set it right, with `timedatectl set-ntp true` or by hand; work goes on meanwhile", behind.Round(time.Second)))
	default:
		d.problems.note("clock", protocol.Errorf(protocol.CodeFailedPrecondition,
			"this machine's clock is %s ahead of the server's: set it right, with `timedatectl set-ntp true` or by hand; work goes on meanwhile", (-behind).Round(time.Second)))
	}
}

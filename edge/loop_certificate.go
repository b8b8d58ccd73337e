package edge

import (
	"context"
	"time"

	"bivouac/edge/protocol/runnerv1"
)

// tickCertificate renews the certificate at two thirds of its life and moves the
// link to a connection that shows it.
func (d *Daemon) tickCertificate(ctx context.Context) (bool, error) {
	due, err := d.certificateDue()
	if err != nil && !d.cfg.State.CertificateLost() {
		return false, err
	}
	c := d.line.get() // one that is lost is due at once; without a link the link recovers it
	if c == nil || d.cfg.State.Now().Before(due) {
		return false, nil
	}
	res, err := call(ctx, d.client.RenewCertificate, &runnerv1.RenewCertificateRequest{})
	if err != nil {
		return false, d.superseded(c, err)
	}
	if err := d.cfg.State.SaveCertificate(res.GetCertificateChain()); err != nil {
		return false, err
	}
	d.log.InfoContext(ctx, "certificate renewed")
	return false, d.link.Redial(ctx, d.settle) // when it fails the running connection still serves
}

// certificateDue is when the certificate should be renewed.
func (d *Daemon) certificateDue() (time.Time, error) {
	c, err := d.cfg.State.Certificate()
	if err != nil {
		return time.Time{}, err
	}
	life := c.Leaf.NotAfter.Sub(c.Leaf.NotBefore)
	return c.Leaf.NotBefore.Add(life * 2 / 3), nil
}

// certificateIn looks again when it is due, and at least once a minute: a
// machine may have slept, or been without a link.
func (d *Daemon) certificateIn() time.Duration {
	due, err := d.certificateDue()
	if err != nil {
		return time.Minute
	}
	return max(time.Second, min(time.Minute, due.Sub(d.cfg.State.Now())))
}

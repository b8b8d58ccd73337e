package edge

import (
	"context"
	"time"

	"bivouac/edge/protocol/runnerv1"
)

// shortEvery is how often leases are renewed while a model call waits for other
// terms. A renewal writes nothing.
const shortEvery = 250 * time.Millisecond

// tickRenew renews all leases in one call when the first is due. Authority is
// counted from when the call was sent (INV-20).
func (d *Daemon) tickRenew(ctx context.Context) (bool, error) {
	c := d.line.get()
	all := d.leased()
	if c == nil || len(all) == 0 || d.dueIn(all) > 0 {
		return false, nil
	}
	sent := d.cfg.Elapsed()
	d.renewed = sent
	res, err := call(ctx, d.client.Renew, &runnerv1.RenewRequest{Epoch: c.epoch, Leases: held(all)})
	if err != nil {
		return false, d.superseded(c, err)
	}
	d.judge(all, sent, res.GetLeases())
	return false, nil
}

// leased are the attempts that still need a lease.
func (d *Daemon) leased() (out []*attempt) {
	for _, a := range d.table.all() {
		if !a.ended.Load() && a.cut.Load() == nil {
			out = append(out, a)
		}
	}
	return out
}

// dueIn is how long until the first lease is due, or one that is short.
func (d *Daemon) dueIn(all []*attempt) time.Duration {
	in := time.Hour
	for _, a := range all {
		in = min(in, a.lease.Due())
		if a.short.Load() {
			in = min(in, shortEvery-(d.cfg.Elapsed()-d.renewed))
		}
	}
	return in
}

// renewIn is how long the renew loop rests.
func (d *Daemon) renewIn() time.Duration {
	all := d.leased()
	if d.line.get() == nil || len(all) == 0 {
		return 0 // woken by the link, or by a claim
	}
	return max(d.dueIn(all), time.Millisecond)
}

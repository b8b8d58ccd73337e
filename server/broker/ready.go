package broker

import "context"

// Ready says what this broker lacks to admit anything: a feed that is fresh, the
// identity with which servers meet it, and to know who may reach what. It waits for nothing.
func (b *Broker) Ready(context.Context) error {
	if err := b.feed.Check(b.cfg.FeedLimit); err != nil {
		return err
	}
	if mesh, ok := b.ports.Vouch.(interface{ Ready() error }); ok {
		if err := mesh.Ready(); err != nil {
			return err
		}
	}
	if watched, ok := b.ports.Paths.(interface{ Ready() error }); ok {
		return watched.Ready()
	}
	return nil
}

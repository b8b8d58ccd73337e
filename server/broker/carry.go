package broker

import (
	"context"
	"net/http"

	"bivouac/server/broker/egress"
	"bivouac/server/broker/gateway"
	"bivouac/server/broker/issued"
)

// carrier takes along what was issued for a tool's call and is no value of one
// header. close ends what it has open.
func (o *outlet) carrier(name string, c issued.Credential) (out gateway.Carrier, close func(), err error) {
	from, close := o.issued[name], func() {}
	if from == nil {
		return out, close, nil
	}
	out.PutFunc = func(ctx context.Context, r *http.Request) error { return from.Put(ctx, r, c, "destination "+o.Name()) }
	if c.Certificate == nil {
		return out, close, nil
	}
	way := o.reach
	way.Certificate = c.Certificate
	if out.Client, err = egress.NewClient(way); err != nil {
		return out, close, err
	}
	return out, out.Client.CloseIdleConnections, nil
}

package broker

import (
	"context"
	"net/http"

	"bivouac/server/broker/egress"
	"bivouac/server/broker/gateway"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/secret"
)

// carrier takes along what was issued for a tool's call and is no value of one
// header. close ends what it has open.
func (o *outlet) carrier(name string, c issued.Credential) (out gateway.Carrier, close func(), err error) {
	from, close := o.issued[name], func() {}
	if from == nil {
		return out, close, nil
	}
	out.PutFunc = func(ctx context.Context, r *http.Request) error { return from.Put(ctx, r, c, "destination "+o.Name()) }
	out.HiddenFunc = from.Hidden
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

// bound is the value that a binding of the destination carries. What travels by itself,
// such as a user and a password in two headers, has none.
func (o *outlet) bound(name string, c issued.Credential) secret.Value {
	if from := o.issued[name]; from != nil {
		if _, ok := from.Binding(); !ok {
			return secret.Value{}
		}
	}
	return c.Value
}

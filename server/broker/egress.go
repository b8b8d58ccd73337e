package broker

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"bivouac/consul/refused"
	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/broker/forward"
	"bivouac/server/broker/secret"
	"bivouac/server/intercept"
)

// serveEgress answers one package request of sandboxed code: refused in words that
// the tool which asked shows, or passed on as it comes. INV-12.
func (b *Broker) serveEgress(w http.ResponseWriter, r *http.Request) {
	begun, err := b.fetch(w, r)
	metered{b.ports.Meter}.count(KindEgress, err)
	intercept.End(r.Context(), err)
	switch {
	case err == nil:
	case begun:
		panic(http.ErrAbortHandler) // half an answer must not look like a whole one
	default:
		refuseEgress(w, err, intercept.RequestID(r.Context()))
	}
}

// refuseEgress says no as plain text, which go, npm and git print.
func refuseEgress(w http.ResponseWriter, err error, incident string) {
	code := protocol.CodeOf(err)
	text := err.Error()
	if code == protocol.CodeInternal {
		text = "the broker failed inside; its log says why under incident " + incident
	}
	if p, ok := refused.Parse(text); ok {
		where, entry := p.Mend("")
		text += " A person allows it in " + where + ":\n" + entry
	}
	h := w.Header()
	clear(h)
	h.Set(protocol.EgressCode, string(code))
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(text)+1))
	w.WriteHeader(protocol.Codes[code].HTTP)
	_, _ = io.WriteString(w, text+"\n") // the caller went
}

func (b *Broker) fetch(w http.ResponseWriter, r *http.Request) (begun bool, err error) {
	peer, err := link.PeerFrom(r.Context())
	if err != nil {
		return false, err
	}
	if peer.Role != identity.RoleRunner {
		return false, denied("package requests come from runners alone")
	}
	req := &request{peer: peer, token: r.Header.Get(protocol.EgressCapability), egress: r.Header.Get(protocol.EgressDestination)}
	if req.egress == "" {
		return false, protocol.Errorf(protocol.CodeInvalidArgument, "the request names no destination")
	}
	ctx, fl := b.flows.begin(r.Context(), req)
	defer b.flows.end(fl)
	err = b.admit(ctx, fl)
	annotate(ctx, req)
	if err != nil {
		return false, err
	}
	ctx, cancel := b.untilDeadline(ctx, req)
	defer cancel()
	begun, err = b.pass(ctx, w, r, req)
	if err != nil {
		err = because(ctx, err)
	}
	return begun, err
}

// pass sends an admitted request on, within what the turn may move.
func (b *Broker) pass(ctx context.Context, w http.ResponseWriter, r *http.Request, req *request) (begun bool, err error) {
	out := b.destinations[req.egress]
	if err := b.roomFor(out, req); err != nil {
		return false, refusedBy(ByCap, err)
	}
	ready, err := out.packages.Prepare(forward.Ask{
		Method: r.Method, Target: r.Header.Get(protocol.EgressTarget), Header: r.Header, Body: r.Body, Length: r.ContentLength,
	})
	if err != nil {
		return false, refusedBy(ByPolicy, err)
	}
	if err := b.leaves(ctx, req, ready.Wire()); err != nil {
		return false, err
	}
	p := forward.Passage{TakeFunc: func(n int) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return refusedBy(ByCap, b.take(out, req, n))
	}}
	if p.Credential, p.Before, err = b.egressKey(ctx, out, req); err != nil {
		return false, err
	}
	p.StatusFunc = func(status int) { b.refusedToken(req.claims.Tenant, out.packages.Credential(), p.Credential, status) }
	return ready.Send(ctx, w, p)
}

// checkEgress holds a package request against what the capability names: an
// attempt's, and a destination that is one for sandboxed code. INV-10, INV-12.
func (b *Broker) checkEgress(r *request) error {
	c := r.claims
	out := b.destinations[r.egress]
	switch {
	case c.Attempt == "" || !slices.Contains(c.Egress, r.egress):
		return denied("this turn's sandbox has no way to %q: name it in egress of the agent %s", r.egress, c.Agent)
	case out == nil:
		_, err := b.pathDestination(r)
		return err
	case out.packages == nil:
		return denied("destination %s is not for sandboxed code: it needs an egress block in broker.hcl", r.egress)
	}
	return nil
}

// roomFor bounds how many requests of one turn are open at a destination.
func (b *Broker) roomFor(out *outlet, req *request) error {
	turn := req.claims.Turn
	open, _, _ := b.flows.count(func(r *request) bool { return r.egress == req.egress && r.claims.Turn == turn }, "")
	if open > out.bounds.MaxOpen { // this one is among them
		return protocol.Errorf(protocol.CodeRateLimited, "this turn has %d requests open at destination %s already", out.bounds.MaxOpen, req.egress)
	}
	return b.take(out, req, 0)
}

// take counts what a request moves, until its turn is over.
func (b *Broker) take(out *outlet, req *request, n int) error {
	left := movedKept
	if now, ok := b.feed.Now(); ok && !req.claims.Deadline.IsZero() {
		left = min(left, req.claims.Deadline.Sub(now))
	}
	return b.moved.take(movedKey{req.claims.Turn, req.egress}, int64(n), out.bounds.MaxMiBPerTurn<<20, left)
}

// egressKey is the key that the operator bound, as for a model route.
func (b *Broker) egressKey(ctx context.Context, out *outlet, r *request) (key secret.Value, before []secret.Value, err error) {
	name := out.packages.Credential()
	if name == "" {
		return secret.Value{}, nil, nil
	}
	if key, before, err = b.routeValue(ctx, r.claims.Tenant, name); err != nil {
		var e *protocol.Error
		if errors.As(err, &e) {
			said := protocol.Errorf(e.Code, "destination %s: %s", r.egress, strings.TrimSpace(e.Message))
			said.Detail = e.Detail
			return secret.Value{}, nil, said
		}
		return secret.Value{}, nil, err
	}
	return key, before, nil
}

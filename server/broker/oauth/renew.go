package oauth

import (
	"context"
	"slices"
	"time"

	"golang.org/x/oauth2"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// renew gets a token, writes a refresh token that was replaced back, and lets go
// whoever waits. It is an op: no asker's end and no stop of the broker ends it.
func (t *Tokens) renew(ctx context.Context, k key, stored, with secret.Value) {
	ctx = context.WithoutCancel(ctx)
	c := t.configs[k.name]
	got, client, err := t.request(ctx, k, c, with)
	now := t.elapsed()
	t.mu.Lock()
	h := t.held[k]
	h.hide(client)
	if err != nil {
		h.refusal, h.refused, h.refusedAt = err, stored, now
		t.finishLocked(h)
		t.mu.Unlock()
		t.log.WarnContext(ctx, "no access token", "credential", k.name, "tenant", k.tenant, "code", protocol.CodeOf(err))
		return
	}
	h.refusal, h.refused, h.overtaken = nil, secret.Value{}, false
	h.hide(h.token)
	if h.stored != with { // another was stored
		h.hide(h.stored)
		h.past = nil
	}
	h.stored, h.token, h.got, h.until, h.saved = with, got.token, now, now+got.life, true
	replaced := c.Grant == RefreshToken && !got.next.IsZero() && got.next != with
	if replaced {
		// The old one is remembered beside the new one from here on, and the new one is in
		// memory until the authority has it.
		h.past = append(h.past, with)
		h.past = h.past[max(0, len(h.past)-maxPast):]
		h.stored, h.saved = got.next, false
	}
	t.mu.Unlock()
	if replaced {
		t.save(ctx, k)
	}
	t.mu.Lock()
	t.finishLocked(h)
	t.mu.Unlock()
	t.log.InfoContext(ctx, "access token", "credential", k.name, "tenant", k.tenant, "life", got.life.Round(time.Second), "replaced", replaced)
}

// finishLocked lets go whoever waits. What is still to be stored is so only from here
// on: while the request was under way nobody was to write it.
func (t *Tokens) finishLocked(h *held) {
	if h.done != nil {
		close(h.done)
		h.done = nil
	}
	if h.open() {
		t.unsaved.Ring()
	}
}

// save writes the refresh token in force over what the authority has. What was stored
// there meanwhile is a person's, and counts.
func (t *Tokens) save(ctx context.Context, k key) {
	t.mu.Lock()
	h := t.held[k]
	is, past, saved := h.stored, slices.Clone(h.past), h.saved
	t.mu.Unlock()
	if saved {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := error(protocol.Errorf(protocol.CodeConflict, "nothing was stored before"))
	for i := len(past) - 1; i >= 0 && protocol.CodeOf(err) == protocol.CodeConflict; i-- {
		err = t.store.ReplaceCredential(ctx, k.tenant, k.name, past[i], is)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case h.stored != is:
	case err == nil:
		h.saved = true
	case protocol.CodeOf(err) == protocol.CodeConflict || protocol.CodeOf(err) == protocol.CodeNotFound:
		h.hide(h.token)
		h.hide(is)
		h.stored, h.token, h.past, h.saved, h.overtaken = secret.Value{}, secret.Value{}, nil, true, true
		t.log.WarnContext(ctx, "a credential was stored anew or deleted while its token was renewed: what is stored counts", "credential", k.name, "tenant", k.tenant)
	default:
		t.log.ErrorContext(ctx, "a refresh token was replaced and is not stored yet: it is lost if the broker ends before it is", "credential", k.name, "tenant", k.tenant, "error", err)
	}
}

// runUnsaved writes what the authority did not take, until it does.
func (t *Tokens) runUnsaved(ctx context.Context) error {
	var pause op.Bell // nobody rings it
	for ctx.Err() == nil {
		if len(t.open()) == 0 {
			t.unsaved.Wait(ctx, 0)
			continue
		}
		pause.Wait(ctx, saveAgain)
		t.saveOpen(ctx)
	}
	return nil
}

func (t *Tokens) saveOpen(ctx context.Context) {
	for _, k := range t.open() {
		t.save(context.WithoutCancel(ctx), k)
	}
}

// open are the credentials whose refresh token is not stored.
func (t *Tokens) open() (out []key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, h := range t.held {
		if h.open() {
			out = append(out, k)
		}
	}
	return out
}

// open: a refresh token is not stored, and no request is under way that may replace it.
func (h *held) open() bool { return !h.stored.IsZero() && !h.saved && h.done == nil }

// grantOf is what the server gave.
type grantOf struct {
	token, next secret.Value
	life        time.Duration
}

// request asks the server for a token, once.
func (t *Tokens) request(ctx context.Context, k key, c Config, with secret.Value) (g grantOf, client secret.Value, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if c.Grant == ClientCredentials {
		client = with
	} else if c.Secret != "" {
		if client, err = t.store.RouteKey(ctx, k.tenant, c.Secret); err != nil {
			return g, client, err
		}
	}
	tok, err := c.ask(context.WithValue(ctx, oauth2.HTTPClient, c.Client), client, with)
	if err != nil {
		return g, client, c.failed(err)
	}
	g, err = c.read(tok)
	return g, client, err
}

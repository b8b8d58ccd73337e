package vaultpolicy

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
)

// examine looks one grant up and takes what it finds. Only an answer that says that
// the token or its person is gone ends the grant, and only where the server and the
// broker's login are proven once more after it; everything else is silence. odd is
// told of answers that an operator should know, and may be nil.
func (v *Vault) examine(ctx context.Context, e entry, people *persons, odd func(error)) {
	tell := func(err error) {
		if odd != nil && ctx.Err() == nil {
			odd(err)
		}
	}
	sent := v.table.now()
	a, err := v.lookup(ctx, e.accessor)
	switch k := client.KindOf(err); {
	case err == nil:
		v.found(ctx, e, sent, a, people, tell)
	case k == client.NoAccessor && v.lags(ctx, e):
	case k == client.NoAccessor:
		v.unknown(ctx, e, how(e), tell)
	case k == client.Refused && badToken(err) && v.mayLookUp(ctx):
		// It may ask, and this one token is bad: it ended while it was looked up. Other
		// refusals are rules of the server's, which say nothing about the grant.
		v.unknown(ctx, e, how(e), tell)
	default:
		tell(v.may("look grants up", "write "+lookupPath, err))
	}
}

// unknown ends a grant of which the server says that something is not there, unless
// who said so cannot be proven. Its entry is read meanwhile, and believed no earlier.
func (v *Vault) unknown(ctx context.Context, e entry, how string, tell func(error)) {
	var now listed
	var reads errgroup.Group
	reads.Go(func() error {
		now.r, now.found, now.err = v.readRecord(ctx, e.grant.Principal, e.grant.ID)
		return nil
	})
	err := v.session.Prove(ctx)
	_ = reads.Wait() // it is in now
	switch {
	case err != nil:
		tell(err)
	case !v.superseded(ctx, e, now):
		v.gone(ctx, e, how)
	}
}

// badToken reports that a refusal is about the token that was looked up.
func badToken(err error) bool {
	var f *client.Fault
	return errors.As(err, &f) && strings.Contains(f.Said, "bad token")
}

func (v *Vault) lookup(ctx context.Context, accessor string) (a client.Answer, err error) {
	err = v.session.Do(ctx, func(ctx context.Context, token secret.Value) error {
		a, err = v.client.Write(ctx, token, lookupPath, map[string]any{"accessor": accessor})
		if err == nil && client.Text(a.Data["accessor"]) != accessor {
			err = v.client.Strange("write", lookupPath)
		}
		return err
	})
	return a, err
}

// found is a token that lives: it must be the grant's own, and its person enabled.
func (v *Vault) found(ctx context.Context, e entry, sent time.Duration, a client.Answer, people *persons, tell func(error)) {
	own := tokenOf(a, e.grant.ID)
	v.table.owns(e.grant.ID, own)
	if !own {
		v.gone(ctx, e, "its entry in the index names the token of something else")
		return
	}
	v.lookedUp(a.Request, e)
	entity := client.Text(a.Data["entity_id"])
	off, err := people.get(entity, func() (string, error) { return v.person(ctx, entity) })
	if err != nil {
		tell(err)
		return
	}
	switch {
	case off == personDeleted && v.lags(ctx, e):
		return
	case off == personDeleted:
		v.unknown(ctx, e, off, tell)
		return
	case off != "":
		v.gone(ctx, e, off)
		return
	}
	v.table.prove(e.grant.ID, sent, entity, termOf(a))
	if ttl := client.Seconds(a.Data["ttl"]); ttl > 0 && ttl < v.period*3/4 && !v.table.futile(e.grant.ID) {
		v.renew(ctx, e, ttl)
	}
}

// tokenOf reports that the token that was looked up is of a grant, by its own word.
func tokenOf(a client.Answer, id protocol.GrantID) bool {
	return client.Text(client.Map(a.Data["meta"])[metaGrant]) == id.String()
}

const personDeleted = "the entity of its person was deleted"

// person says why an entity's tokens are refused; empty: they are not.
func (v *Vault) person(ctx context.Context, entity string) (string, error) {
	if entity == "" {
		return "its token hangs on no person", nil
	}
	a, err := v.read(ctx, "see whether a person is disabled", "identity/entity/id/"+entity)
	switch {
	case client.KindOf(err) == client.Absent:
		return personDeleted, nil
	case err != nil:
		return "", err
	}
	switch off, ok := a.Data["disabled"].(bool); {
	case !ok:
		return "", v.client.Strange("read", "identity/entity/id/"+entity)
	case off:
		return "the entity of its person is disabled", nil
	}
	return "", nil
}

// renew keeps a token, of which some time is left, for another period. What fails is
// tried at the next look-up. Whether a renewal still makes it longer is known from no
// look-up: the role of grants may have an end that the token does not show.
func (v *Vault) renew(ctx context.Context, e entry, left time.Duration) {
	a, err := v.write(ctx, "renew grants", "auth/token/renew-accessor", map[string]any{"accessor": e.accessor})
	if err != nil && ctx.Err() == nil {
		v.log.WarnContext(ctx, "the token of a grant was not renewed", "grant", e.grant.ID, "expires", e.expires, "error", err)
	}
	if err == nil {
		v.table.lengthened(e.grant.ID, a.Login.TTL > left+time.Second) // the server rounds
	}
}

const lookupPath = "auth/token/lookup-accessor"

// mayLookUp asks whether the broker's login has the right to look grants up.
func (v *Vault) mayLookUp(ctx context.Context) bool {
	a, err := v.write(ctx, "ask what it may", "sys/capabilities-self", map[string]any{"paths": []string{lookupPath}})
	return err == nil && slices.Contains(client.Texts(a.Data[lookupPath]), "update")
}

// lagIn is how long a standby may not know what the active server has made.
const lagIn = 10 * time.Second

// lags reports that an absence proves nothing: the grant is new, and who answers is a
// standby, which may not have heard of it.
func (v *Vault) lags(ctx context.Context, e entry) bool {
	if time.Since(e.grant.CreatedAt) > lagIn && time.Since(e.renewedAt) > lagIn {
		return false
	}
	a, err := v.client.Read(ctx, secret.Value{}, "sys/leader")
	return err != nil || client.Flag(a.Data["ha_enabled"]) && !client.Flag(a.Data["is_self"])
}

// persons are what the server said of each in one round: every one is asked for once.
type persons struct {
	mu    sync.Mutex
	known map[string]*person
}

type person struct {
	once sync.Once
	off  string
	err  error
}

func newPersons() *persons { return &persons{known: map[string]*person{}} }

func (p *persons) get(entity string, find func() (string, error)) (string, error) {
	p.mu.Lock()
	x := p.known[entity]
	if x == nil {
		x = &person{}
		p.known[entity] = x
	}
	p.mu.Unlock()
	x.once.Do(func() { x.off, x.err = find() })
	return x.off, x.err
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func trimSlash(s string) string { return strings.TrimSuffix(s, "/") }

// number as text, which is the key of versions.
func number(v any) string {
	if n, ok := v.(json.Number); ok {
		return n.String()
	}
	return ""
}

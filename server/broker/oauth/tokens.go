package oauth

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/lease"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// Grants that broker.hcl may name.
const (
	RefreshToken      = "refresh_token"
	ClientCredentials = "client_credentials"
)

// Config of one credential.
type Config struct {
	// Name of the credential: what is stored under it is the refresh token, or with
	// ClientCredentials the client's secret.
	Name     string
	TokenURL string
	Grant    string
	ClientID string
	// Secret names the credential with the client's own secret; empty: it has none.
	Secret string
	// InBody sends id and secret in the body, and not as Basic.
	InBody bool
	// Scopes and Audience that are asked for, with ClientCredentials.
	Scopes   []string
	Audience string
	Client   *http.Client // see package egress
}

// Store holds what is behind a token.
type Store interface {
	// RouteKey is a value that the operator bound.
	RouteKey(ctx context.Context, tenant protocol.TenantID, name string) (secret.Value, error)
	// ReplaceCredential puts a value in the place of another, durably before it answers;
	// where another one is stored it is CodeConflict.
	ReplaceCredential(ctx context.Context, tenant protocol.TenantID, name string, was, is secret.Value) error
}

// Params of Tokens.
type Params struct {
	Configs []Config
	Store   Store
	Elapsed lease.Elapsed
	Log     *slog.Logger
}

// Bounds of tokens.
const (
	requestTimeout = 10 * time.Second
	storeTimeout   = 10 * time.Second
	// early is how long before its end a token is not used any more, and at most a
	// tenth of its life.
	early = time.Minute
	// unsaid is the life of a token of which the server says none.
	unsaid = time.Hour
	// refusedFor is how long a refusal of what is stored is told without asking again,
	// and failedFor any other failure.
	refusedFor = time.Minute
	failedFor  = 5 * time.Second
	// settled is how old a token is before a 401 makes it worth another.
	settled = 10 * time.Second
	// saveAgain is the wait before what the authority did not take is written again.
	saveAgain = 15 * time.Second
	// maxPast values of one credential are remembered.
	maxPast = 4
)

// Tokens are the access tokens of one broker. It is safe for concurrent use.
type Tokens struct {
	configs map[string]Config
	store   Store
	elapsed lease.Elapsed
	log     *slog.Logger
	ops     op.Runner
	unsaved op.Bell

	mu       sync.Mutex // guards below
	held     map[key]*held
	requests int // that were begun
}

type key struct {
	tenant protocol.TenantID
	name   string
}

// held is what is known of one credential of one tenant.
type held struct {
	stored secret.Value   // that the token stands on
	past   []secret.Value // what took its place, the newest last
	saved  bool           // the authority has it
	token  secret.Value
	hidden []secret.Value // tokens and secrets of before
	got    time.Duration
	until  time.Duration
	// refusal is what the server said of a stored value.
	refusal   error
	refused   secret.Value
	refusedAt time.Duration
	// overtaken: what was stored changed under a refresh token that its server replaced.
	overtaken bool
	done      chan struct{} // of the request under way; nil: there is none
}

// New makes Tokens; it starts nothing.
func New(p Params) *Tokens {
	t := &Tokens{configs: map[string]Config{}, store: p.Store, elapsed: p.Elapsed, log: p.Log, unsaved: op.NewBell(), held: map[key]*held{}}
	for _, c := range p.Configs {
		t.configs[c.Name] = c
	}
	return t
}

// Makes reports a credential whose stored value is not sent itself.
func (t *Tokens) Makes(name string) bool {
	_, ok := t.configs[name]
	return ok
}

// Run until ctx ends and no request is under way.
func (t *Tokens) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.ops.Run(ctx) })
	g.Go(func() error { return t.runUnsaved(ctx) })
	err := g.Wait()
	t.saveOpen(ctx) // no request replaces it any more: it is the last chance
	for _, c := range t.configs {
		c.Client.CloseIdleConnections()
	}
	return err
}

// Access is a token, and what else an answer is redacted of.
type Access struct {
	Token  secret.Value
	Hidden []secret.Value
}

// Access finds or gets the token of a stored value, which the caller was just given by
// the authority.
func (t *Tokens) Access(ctx context.Context, tenant protocol.TenantID, name string, stored secret.Value) (Access, error) {
	k := key{tenant, name}
	for range 3 {
		a, done, err := t.find(k, stored)
		if done == nil {
			return a, err
		}
		select {
		case <-done:
		case <-ctx.Done():
			return Access{}, context.Cause(ctx)
		}
	}
	return Access{}, protocol.Errorf(protocol.CodeUnavailable, "the credential %q changes faster than a token of it is got: try again", name)
}

// find what is known, or the request to wait for.
func (t *Tokens) find(k key, stored secret.Value) (Access, <-chan struct{}, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.held[k]
	if h == nil {
		h = &held{}
		t.held[k] = h
	}
	if h.done != nil {
		return Access{}, h.done, nil
	}
	now := t.elapsed()
	mine := h.stored == stored || slices.Contains(h.past, stored)
	if mine && !h.token.IsZero() && now < h.until-min(early, (h.until-h.got)/10) {
		return h.access(), nil, nil
	}
	if h.refused == stored && h.refusal != nil && now < h.refusedAt+h.pause() {
		if mine && !h.token.IsZero() && now < h.until {
			return h.access(), nil, nil // the server is away, and the token is not over
		}
		return Access{}, nil, h.refusal
	}
	with := stored
	if mine {
		with = h.stored // what took the place of stored, perhaps not stored yet
	}
	done := make(chan struct{})
	// An op may still end when who waited for its token asks for the next one.
	t.requests++
	if !t.ops.Start(fmt.Sprintf("%s/%s/%d", k.tenant, k.name, t.requests), func(ctx context.Context) { t.renew(ctx, k, stored, with) }) {
		return Access{}, nil, protocol.Errorf(protocol.CodeUnavailable, "the broker is stopping, or has not started: no token is got for the credential %q", k.name)
	}
	h.done = done
	return Access{}, done, nil
}

func (h *held) access() Access {
	hidden := append(slices.Clone(h.hidden), h.stored)
	return Access{Token: h.token, Hidden: append(hidden, h.past...)}
}

// Refused forgets a token that its upstream refused (401). A new one is worth no other.
func (t *Tokens) Refused(tenant protocol.TenantID, name string, token secret.Value) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.held[key{tenant, name}]
	if h != nil && h.token == token && !token.IsZero() && t.elapsed() >= h.got+settled {
		h.hide(token)
		h.token = secret.Value{}
	}
}

// pause before the server is asked again.
func (h *held) pause() time.Duration {
	if protocol.DetailOf(h.refusal) == protocol.DetailCredentialRefused {
		return refusedFor
	}
	return failedFor
}

// Stored forgets what was refused for a credential that was stored anew.
func (t *Tokens) Stored(tenant protocol.TenantID, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, h := range t.held {
		if k.tenant == tenant && (k.name == name || t.configs[k.name].Secret == name) {
			h.refusal, h.overtaken = nil, false
		}
	}
}

func (h *held) hide(v secret.Value) {
	if v.IsZero() || slices.Contains(h.hidden, v) {
		return
	}
	h.hidden = append(h.hidden, v)
	h.hidden = h.hidden[max(0, len(h.hidden)-maxPast):]
}
